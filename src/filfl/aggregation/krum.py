"""The updates that are nearest to their neighbours.

Blanchard, El Mhamdi, Guerraoui, Stainer: Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent.
NeurIPS 2017.
"""

from dataclasses import dataclass

from torch import Tensor

from filfl.aggregation.base import Memory
from filfl.aggregation.robust import Robust, shares_of
from filfl.aggregation.stack import Stack
from filfl.weights import Weights


def scores(stack: Stack, f: int) -> Tensor:
    """For each update the mean squared distance to the n - f - 1 others that are nearest."""
    return stack.squared_distances().sort(dim=1).values[:, 1 : stack.n - f].mean(dim=1)


@dataclass(frozen=True, kw_only=True)
class Krum(Robust):
    """The single update with the lowest score."""

    def combined(self, stack: Stack, f: int, memory: Memory) -> tuple[Memory, Weights]:
        best = [0] if stack.n < 2 else [int(scores(stack, f).argmin())]
        return memory, stack.sum(shares_of(best, stack))


@dataclass(frozen=True, kw_only=True)
class MultiKrum(Robust):
    """The mean of the n - f updates with the lowest scores."""

    def combined(self, stack: Stack, f: int, memory: Memory) -> tuple[Memory, Weights]:
        chosen = range(stack.n) if stack.n < 2 else scores(stack, f).argsort(stable=True)[: stack.n - f].tolist()
        return memory, stack.sum(shares_of(list(chosen), stack))
