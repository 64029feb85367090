"""The interface of a model: options that build a network for a sample shape and a number of classes."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from filfl.config.schema import Section


@dataclass(frozen=True, kw_only=True)
class Model(Section, ABC):
    """The options of a network."""

    fits_least_squares: ClassVar[bool] = False
    """Whether training minimises a least-squares problem, whose optimum is known."""

    @abstractmethod
    def build(self, sample_shape: tuple[int, ...], classes: int) -> nn.Module:
        """A new network with new initial weights. `classes` is 0 if the targets are numbers."""
