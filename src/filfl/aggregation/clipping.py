"""Means of updates whose norm is limited.

Norm clipping: Sun, Kairouz, Suresh, McMahan: Can You Really Backdoor Federated Learning? 2019. Centered clipping:
Karimireddy, He, Jaggi: Learning from History for Byzantine Robust Optimization. ICML 2021.
"""

from dataclasses import dataclass

import torch

from filfl.aggregation.base import Memory
from filfl.aggregation.robust import Robust
from filfl.aggregation.stack import Stack
from filfl.config.schema import Count, Positive
from filfl.weights import Weights

BEFORE_LAST = "update"
"""Where the memory has the update of the last round."""


@dataclass(frozen=True, kw_only=True)
class NormClipping(Robust):
    """The mean of the updates, each shortened to a norm."""

    norm: Positive | None = None
    """The longest norm of an update; unset: the median of the norms in this round."""

    def combined(self, stack: Stack, f: int, memory: Memory) -> tuple[Memory, Weights]:
        norms = stack.norms()
        longest = norms.quantile(0.5) if self.norm is None else torch.full_like(norms[0], self.norm)
        return memory, stack.sum((longest / norms.clamp(min=1e-300)).clamp(max=1) / stack.n)


@dataclass(frozen=True, kw_only=True)
class CenteredClipping(Robust):
    """The update of the last round, moved by the mean of the differences to it, each shortened to a radius."""

    radius: Positive | None = None
    """The longest difference to the update of the last round; unset: the median of the differences in this round."""
    steps: Count = 1
    """How often the update is moved in a round."""

    def combined(self, stack: Stack, f: int, memory: Memory) -> tuple[Memory, Weights]:
        last = memory.get(BEFORE_LAST, torch.zeros_like(stack.w_t.vector)).double()
        onto = sum_of(stack, last)
        # v = a last + sum_k share_k row_k, so its distances to the rows follow from inner products.
        a, shares, square = 1.0, torch.zeros_like(stack.inner[0]), float(last @ last)
        for _ in range(self.steps):
            row_v = a * onto + stack.inner @ shares
            v_v = a * a * square + 2 * a * float(shares @ onto) + float(shares @ stack.inner @ shares)
            distances = (stack.inner.diagonal() - 2 * row_v + v_v).clamp(min=0).sqrt()
            radius = distances.quantile(0.5) if self.radius is None else torch.full_like(distances[0], self.radius)
            factors = (radius / distances.clamp(min=1e-300)).clamp(max=1) / stack.n
            rest = 1 - float(factors.sum())
            a, shares = rest * a, rest * shares + factors
        moved = stack.sum(shares)
        w_next = (moved.vector.double() + a * last).to(moved.vector.dtype)
        return {BEFORE_LAST: w_next - stack.w_t.vector}, Weights(w_next, moved.integers)


def sum_of(stack: Stack, vector: torch.Tensor) -> torch.Tensor:
    """[rows]: the inner products of the rows with a vector."""
    total = torch.zeros_like(stack.inner[0])
    for here, piece in stack.pieces():
        total += piece @ vector[here]
    return total
