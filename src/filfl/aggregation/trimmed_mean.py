"""The mean of every weight without the largest and the smallest ones.

Yin, Chen, Kannan, Bartlett: Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates. ICML 2018.
"""

from dataclasses import dataclass

from filfl.aggregation.base import Memory
from filfl.aggregation.robust import Robust
from filfl.aggregation.stack import Stack
from filfl.weights import Weights


@dataclass(frozen=True, kw_only=True)
class TrimmedMean(Robust):
    """For every weight, the mean of the clients without the f largest and the f smallest values."""

    def combined(self, stack: Stack, f: int, memory: Memory) -> tuple[Memory, Weights]:
        return memory, stack.reduced(lambda piece: piece.sort(dim=0).values[f : stack.n - f].mean(dim=0))
