"""An average that a strategy of Flower's makes."""

from collections.abc import Sequence
from dataclasses import dataclass

from filfl.aggregation.base import Admitted, Aggregation, ServerState
from filfl.errors import only_on_flower
from filfl.weights import Weights


@dataclass(frozen=True, kw_only=True)
class OfFlower(Aggregation):
    """Whatever the wrapped strategy of a Flower federation does: see filfl.flower."""

    strategy: str = "FedAvg"

    def __call__(self, server: ServerState, w_t: Weights, updates: Sequence[Admitted]) -> tuple[ServerState, Weights]:
        raise only_on_flower("aggregation.name", "flower")
