"""Logistic regression."""

import math
from dataclasses import dataclass

from torch import nn

from filfl.models.base import Model


@dataclass(frozen=True, kw_only=True)
class Logistic(Model):
    """Logistic regression: one linear layer. The training problem is convex."""

    def build(self, sample_shape: tuple[int, ...], classes: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(sample_shape), classes))
