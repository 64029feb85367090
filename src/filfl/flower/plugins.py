"""The parts of a config that a Flower federation provides: availability, aggregation, and judging by a function."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from flwr.app import ArrayRecord, MetricRecord

from filfl.aggregation import Admitted, Aggregation, Memory
from filfl.availability import Availability
from filfl.availability.base import Ids
from filfl.config.schema import NOT_AN_OPTION
from filfl.core.exchange import Exchange
from filfl.errors import PluginError
from filfl.filtering.rewards import Judgement
from filfl.flower.grid_clients import GridClients
from filfl.flower.records import aggregated, to_arrays
from filfl.weights import Layout, Mismatch, Weights

Evaluate = Callable[[ArrayRecord], float]
"""Arrays -> their loss on the filtering set."""


@dataclass(frozen=True, kw_only=True)
class ConnectedNodes(Availability):
    """S_t: the clients whose nodes are connected when the round begins."""

    name: ClassVar[str] = "connected"
    reproducible: ClassVar[bool] = False
    clients: GridClients | None = field(default=None, metadata=NOT_AN_OPTION)

    def __call__(self, t: int, num_clients: int, seed: int) -> Ids:
        assert self.clients is not None
        return self.clients.connected()


@dataclass(frozen=True, kw_only=True)
class StrategyAverage(Aggregation):
    """Lines 18-19 by the wrapped strategy, from the messages that passed the guard."""

    name: ClassVar[str] = "flower"
    strategy: str = "FedAvg"
    """The class of the wrapped strategy."""
    clients: GridClients | None = field(default=None, metadata=NOT_AN_OPTION)
    metrics: dict[int, MetricRecord] = field(default_factory=dict, metadata=NOT_AN_OPTION)
    """Of the clients that trained, by round."""

    def __call__(self, t: int, memory: Memory, w_t: Weights, updates: Sequence[Admitted]) -> tuple[Memory, Weights]:
        assert self.clients is not None
        wrapped = self.clients.strategy
        try:
            arrays, metrics = wrapped.average(t, [update.message for update in updates])
            if metrics is not None:
                self.metrics[t] = metrics
            if arrays is None:
                return memory, w_t
            w_next = aggregated(arrays, self.clients.layout)
        except Mismatch as reason:
            raise PluginError(f"{wrapped.name} returned arrays that do not fit the model: {reason}") from None
        self.clients.reuse(w_next, arrays)
        return wrapped.memory(), w_next


@dataclass(frozen=True)
class ByFunction:
    """Judges sets by a user's function (arrays) -> loss on the filtering set."""

    evaluate: Evaluate
    layout: Layout

    def __call__(self, S_t: Ids, exchange: Exchange) -> Judgement:
        integers = exchange.w_t.integers
        return Judgement(lambda vector: float(self.evaluate(to_arrays(Weights(vector, integers), self.layout))))
