"""Linear and logistic regression: one linear layer."""

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from filfl.models.base import Model


@dataclass(frozen=True, kw_only=True)
class Linear(Model):
    """Linear regression x . w without a bias, for numeric targets such as those of the dataset ridge."""

    fits_least_squares: ClassVar[bool] = True

    def build(self, sample_shape: tuple[int, ...], classes: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(sample_shape), 1, bias=False), nn.Flatten(0))


@dataclass(frozen=True, kw_only=True)
class Logistic(Model):
    """Logistic regression: one linear layer. The training problem is convex."""

    def build(self, sample_shape: tuple[int, ...], classes: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(sample_shape), classes))
