"""The point with the smallest sum of distances to the updates.

Pillutla, Kakade, Harchaoui: Robust Aggregation for Federated Learning. IEEE Transactions on Signal Processing 2022.
"""

from dataclasses import dataclass

import torch

from filfl.aggregation.base import Memory
from filfl.aggregation.robust import Robust
from filfl.aggregation.stack import Stack
from filfl.config.schema import Count, Positive
from filfl.weights import Weights


@dataclass(frozen=True, kw_only=True)
class GeometricMedian(Robust):
    """The smoothed Weiszfeld algorithm, which starts at the current model."""

    steps: Count = 3
    """The number of steps. More steps come nearer to the geometric median."""
    smoothing: Positive = 0.1
    """Distances below this count as this, so that no update has an infinite weight."""

    def combined(self, stack: Stack, f: int, memory: Memory) -> tuple[Memory, Weights]:
        # z is a weighted sum of the updates, so its distances to them follow from the inner products.
        shares = torch.zeros_like(stack.inner[0])
        for _ in range(self.steps):
            onto = stack.inner @ shares
            distances = (stack.inner.diagonal() - 2 * onto + shares @ onto).clamp(min=0).sqrt()
            weights = 1 / distances.clamp(min=self.smoothing)
            shares = weights / weights.sum()
        return memory, stack.sum(shares)
