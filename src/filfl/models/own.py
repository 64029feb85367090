"""The user's own network."""

from dataclasses import dataclass

from torch import nn

from filfl.errors import only_from_python
from filfl.models.base import Model


@dataclass(frozen=True, kw_only=True)
class OwnModel(Model):
    """Your own nn.Module, given from Python: filfl.simulate(..., model=factory)."""

    def build(self, sample_shape: tuple[int, ...], classes: int) -> nn.Module:
        raise only_from_python("model.name", "own", "model")
