"""Updates as far away as the others are from each other.

Shejwalkar, Houmansadr: Manipulating the Byzantine: Optimizing Model Poisoning Attacks and Defenses for Federated
Learning. NDSS 2021.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from filfl.attacks.base import Colluders, Collusion

STEPS = 30
"""Bisections of the factor."""


@dataclass(frozen=True, kw_only=True)
class MinMax(Collusion):
    """All attackers send mean - factor std, with the largest factor with which this update is not farther from any of
    their own updates than the two most distant of these are from each other."""

    def sent_together(self, known: Colluders) -> Tensor:
        u, mean, std = (part.double() for part in (known.updates, known.mean, known.std))
        limit = float(torch.cdist(u, u).max())

        def farthest(factor: float) -> float:
            return float(torch.linalg.vector_norm(u - (mean - factor * std), dim=1).max())

        low, high = 0.0, 1.0
        while farthest(high) <= limit and high < 2.0**STEPS and limit > 0:
            high *= 2
        for _ in range(STEPS):
            middle = (low + high) / 2
            low, high = (middle, high) if farthest(middle) <= limit else (low, middle)
        return (mean - low * std).to(known.updates)
