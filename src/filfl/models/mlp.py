"""A multilayer perceptron."""

import math
from dataclasses import dataclass
from itertools import pairwise

from torch import nn

from filfl.config.schema import Count
from filfl.models.base import Model


@dataclass(frozen=True, kw_only=True)
class MLP(Model):
    """Multilayer perceptron with ReLU. For numeric targets it has one output, a number."""

    hidden: tuple[Count, ...] = (64,)
    """The number of units of each hidden layer. [] is logistic regression."""

    def build(self, sample_shape: tuple[int, ...], classes: int) -> nn.Module:
        widths = [math.prod(sample_shape), *self.hidden]
        layers: list[nn.Module] = [nn.Flatten()]
        for width, following in pairwise(widths):
            layers += [nn.Linear(width, following), nn.ReLU()]
        if not classes:
            return nn.Sequential(*layers, nn.Linear(widths[-1], 1), nn.Flatten(0))
        return nn.Sequential(*layers, nn.Linear(widths[-1], classes))
