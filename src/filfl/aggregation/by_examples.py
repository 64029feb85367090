"""The mean by number of examples."""

from collections.abc import Sequence
from dataclasses import dataclass

from filfl.aggregation.base import Admitted, Aggregation, ServerState, weighted_mean
from filfl.weights import Weights


@dataclass(frozen=True, kw_only=True)
class ByExamples(Aggregation):
    """sum_k (m_k / m) w_k: a client counts by its number of training examples."""

    def __call__(self, server: ServerState, w_t: Weights, updates: Sequence[Admitted]) -> tuple[ServerState, Weights]:
        return server, weighted_mean(updates, [float(update.num_examples) for update in updates], w_t)
