"""Linear regression."""

import math
from dataclasses import dataclass

from torch import nn

from filfl.models.base import Model


@dataclass(frozen=True, kw_only=True)
class Linear(Model):
    """Linear regression to one number, x . w without a bias: for targets that are numbers, such as ridge's."""

    def build(self, sample_shape: tuple[int, ...], classes: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(sample_shape), 1, bias=False), nn.Flatten(0))
