"""The user's own network."""

from dataclasses import dataclass

from torch import nn

from filfl.errors import ConfigError
from filfl.models.base import Model


@dataclass(frozen=True, kw_only=True)
class OwnModel(Model):
    """Your own nn.Module, given from Python: filfl.simulate(..., model=factory)."""

    def build(self, sample_shape: tuple[int, ...], classes: int) -> nn.Module:
        raise ConfigError(
            'model.name = "own" stands for a model given from Python: call filfl.simulate(config, model=...), '
            "or name another model (see `filfl list`)"
        )
