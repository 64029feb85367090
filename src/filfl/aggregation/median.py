"""The median of every weight.

Yin, Chen, Kannan, Bartlett: Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates. ICML 2018.
"""

from dataclasses import dataclass

from filfl.aggregation.base import Memory
from filfl.aggregation.robust import Robust
from filfl.aggregation.stack import Stack
from filfl.weights import Weights


@dataclass(frozen=True, kw_only=True)
class Median(Robust):
    """The median of the clients for every weight; of an even number, the mean of the two middle ones."""

    def combined(self, stack: Stack, f: int, memory: Memory) -> tuple[Memory, Weights]:
        low, high = (stack.n - 1) // 2, stack.n // 2 + 1
        return memory, stack.reduced(lambda piece: piece.sort(dim=0).values[low:high].mean(dim=0))
