"""Means of the updates: simple, or weighted by number of examples."""

from collections.abc import Sequence
from dataclasses import dataclass

from filfl.aggregation.base import Admitted, Aggregation, Memory, weighted_mean
from filfl.weights import Weights


@dataclass(frozen=True, kw_only=True)
class Mean(Aggregation):
    """1/|A_t| sum_k w_k: every client has the same weight (the paper's)."""

    def __call__(self, t: int, memory: Memory, w_t: Weights, updates: Sequence[Admitted]) -> tuple[Memory, Weights]:
        return memory, weighted_mean(updates, [1.0] * len(updates), w_t)


@dataclass(frozen=True, kw_only=True)
class ByExamples(Aggregation):
    """sum_k (m_k / m) w_k: a client is weighted by its number of training examples."""

    def __call__(self, t: int, memory: Memory, w_t: Weights, updates: Sequence[Admitted]) -> tuple[Memory, Weights]:
        return memory, weighted_mean(updates, [float(update.num_examples) for update in updates], w_t)
