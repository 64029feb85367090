"""The interface of a model: options that build a network for a sample shape and a number of classes."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import nn

from filfl.options import Section


@dataclass(frozen=True, kw_only=True)
class Model(Section, ABC):
    """The options of a network."""

    @abstractmethod
    def build(self, sample_shape: tuple[int, ...], classes: int) -> nn.Module:
        """A new network with new initial weights. `classes` is 0 if the targets are numbers."""
