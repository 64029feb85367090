"""The interface of a model: options that build a network for a sample shape and a number of classes."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from filfl.config.schema import Section
from filfl.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Model(Section, ABC):
    """The options of a network."""

    fits_least_squares: ClassVar[bool] = False
    """Whether training minimises a least-squares problem, whose optimum is known."""

    @abstractmethod
    def build(self, sample_shape: tuple[int, ...], classes: int) -> nn.Module:
        """A new network with new initial weights. `classes` is 0 if the targets are numbers."""


def image_shape(sample_shape: tuple[int, ...], at_least: int) -> tuple[int, int, int]:
    """Channels, height and width of a sample. Refuses samples that are not images or smaller than `at_least` pixels."""
    if len(sample_shape) != 3:
        raise ConfigError(
            f"model.name: this network needs images of shape channels x height x width, but the samples have the shape "
            f"{list(sample_shape)}; use mlp or logistic"
        )
    channels, height, width = sample_shape
    if min(height, width) < at_least:
        raise ConfigError(
            f"model.name: this network needs images of at least {at_least} x {at_least} pixels, but those of the data "
            f"have {height} x {width}; use a smaller network"
        )
    return channels, height, width
