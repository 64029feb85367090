"""A network given from Python."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

from torch import nn

from filfl.config.schema import NOT_AN_OPTION
from filfl.models.base import Model


@dataclass(frozen=True, kw_only=True)
class OwnModel(Model):
    """Your own nn.Module, given as a function that returns a new one: filfl.simulate(..., model=function)."""

    name: ClassVar[str] = "own"
    make: Callable[[], nn.Module] | None = field(default=None, metadata=NOT_AN_OPTION)

    def build(self, sample_shape: tuple[int, ...], classes: int) -> nn.Module:
        assert self.make is not None  # see Config.require_objects
        return self.make()
