"""The interface of robust means: aggregations that a minority of clients cannot decide."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch

from filfl.aggregation.base import Admitted, Aggregation, Memory
from filfl.aggregation.before import BEFORE, Before
from filfl.aggregation.stack import Stack
from filfl.config.schema import Range
from filfl.data.split import floored
from filfl.weights import Weights


@dataclass(frozen=True, kw_only=True)
class Stacked(Aggregation):
    """An aggregation of the updates w_k - w_t that tolerates some bad clients."""

    bad: Annotated[float, Range(at_least=0, below=0.5)] = 0.3
    """The share of the selected clients that may be bad: f = floor(bad K) of K. Used by trimmed-mean, krum, multi-krum,
    zeno and before = "nnm"; the others tolerate fewer than half without it, and fltrust any share."""
    before: Before = "none"
    """What is done with the updates first. nnm: each is replaced by the mean of its n - f nearest. bucketing: the mean
    is taken over means of two random updates each."""

    def stacked(self, t: int, w_t: Weights, updates: Sequence[Admitted]) -> tuple[Stack, int]:
        """The rows to combine, and how many of them may be bad: f, with 2 f < n."""
        stack = Stack.of(updates, w_t)
        f = floored(self.bad, len(updates))
        if self.before != "none":
            stack = BEFORE[self.before](stack, f, t)
        return stack, min(f, (stack.n - 1) // 2)


@dataclass(frozen=True, kw_only=True)
class Robust(Stacked):
    """A robust mean that needs the updates only."""

    def __call__(self, t: int, memory: Memory, w_t: Weights, updates: Sequence[Admitted]) -> tuple[Memory, Weights]:
        stack, f = self.stacked(t, w_t, updates)
        return self.combined(stack, f, memory)

    @abstractmethod
    def combined(self, stack: Stack, f: int, memory: Memory) -> tuple[Memory, Weights]:
        """The next model from the rows of the stack, of which f may be bad, with 2 f < n."""


def finite(updates: Sequence[Admitted]) -> list[Admitted]:
    """The updates of finite numbers. The guard lets no others pass; in a sum, one of them would spoil all."""
    return [update for update in updates if update.weights.vector.isfinite().all()]


def shares_of(chosen: Sequence[int] | torch.Tensor, stack: Stack) -> torch.Tensor:
    """Equal shares of these rows."""
    shares = torch.zeros(stack.n, dtype=torch.float64, device=stack.inner.device)
    shares[torch.as_tensor(chosen, device=shares.device)] = 1 / len(chosen)
    return shares
