"""What a model is in a config: options that build a network for a sample shape and a number of classes."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import nn


@dataclass(frozen=True, kw_only=True)
class Model(ABC):
    """Options of a network."""

    @abstractmethod
    def build(self, sample_shape: tuple[int, ...], classes: int) -> nn.Module:
        """A new network with fresh weights."""
