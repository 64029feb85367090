"""The parts of a federated round that Flower's side decides: who is there, the average, the test of the model."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from logging import INFO, WARNING
from typing import Any, ClassVar

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.common import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from filfl.aggregation import Admitted, Aggregation, ServerState
from filfl.availability import Availability
from filfl.availability.base import Ids
from filfl.clients import SCALARS
from filfl.errors import PluginError
from filfl.flower.door import GridClients
from filfl.flower.inner import Inner
from filfl.flower.records import aggregated
from filfl.rng import stream
from filfl.weights import Layout, Mismatch, Weights

ACCURACY = ("accuracy", "test_accuracy", "test-accuracy", "eval_acc", "acc")
LOSS = ("loss", "test_loss", "test-loss", "eval_loss")
"""What evaluation functions call these two."""


def from_simulation(grid: Grid) -> bool:
    """Whether this grid is that of Flower's simulation engine."""
    return type(grid).__name__ == "InMemoryGrid"


@dataclass(frozen=True, kw_only=True)
class Connected(Availability):
    """The clients that are connected to the federation when a round begins."""

    name: ClassVar[str] = "connected"

    def __call__(self, t: int, num_clients: int, seed: int) -> Ids:
        raise NotImplementedError  # the config of a run names it, `Live` knows it


@dataclass(frozen=True, kw_only=True)
class OfFlower(Aggregation):
    """The aggregation of the wrapped strategy."""

    name: ClassVar[str] = "flower"
    strategy: str
    """The name of its class."""

    def __call__(self, server: ServerState, w_t: Weights, updates: Sequence[Admitted]) -> tuple[ServerState, Weights]:
        raise NotImplementedError  # the config of a run names it, `Averaged` computes it


@dataclass(frozen=True, kw_only=True)
class Live(Availability):
    """S_t: who is connected when the round begins."""

    door: GridClients

    def __call__(self, t: int, num_clients: int, seed: int) -> Ids:
        self.door.round = t
        return self.door.connected()


@dataclass(frozen=True, kw_only=True)
class Averaged(Aggregation):
    """Lines 18-19 by the wrapped strategy, out of the messages that passed the guard."""

    inner: Inner
    layout: Layout
    door: GridClients
    metrics: dict[int, MetricRecord] = field(default_factory=dict)
    """Of the clients that trained, by round."""

    def __call__(self, server: ServerState, w_t: Weights, updates: Sequence[Admitted]) -> tuple[ServerState, Weights]:
        t = self.door.round
        try:
            arrays, metrics = self.inner.average(t, [update.message for update in updates])
            if metrics is not None:
                self.metrics[t] = metrics
            if arrays is None:
                return server, w_t
            w_next = aggregated(arrays, self.layout)
            self.door.keep(w_next, arrays)
        except Mismatch as reason:
            raise PluginError(f"{self.inner.name} made something else of the models: {reason}") from None
        return self.inner.memory(), w_next


class Tested:
    """The model after a round: by the server's own function, and by the clients where the strategy asks for it."""

    def __init__(
        self,
        door: GridClients,
        layout: Layout,
        inner: Inner,
        seed: int,
        config: ConfigRecord,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None,
    ) -> None:
        self._door, self._layout, self._inner, self._seed = door, layout, inner, seed
        self._config, self._evaluate_fn = config, evaluate_fn
        self.result = Result()

    def at_start(self, arrays: ArrayRecord) -> None:
        if self._evaluate_fn and (found := self._evaluate_fn(0, arrays)) is not None:
            self.result.evaluate_metrics_serverapp[0] = found

    def __call__(self, w: Weights) -> dict[str, Any]:
        t = self._door.round
        clients, spent = self._by_clients(t, w)
        server = self._evaluate_fn(t, self._door.arrays(w)) if self._evaluate_fn else None
        if server is not None:
            self.result.evaluate_metrics_serverapp[t] = server
        if clients is not None:
            self.result.evaluate_metrics_clientapp[t] = clients
        scores: Mapping[str, Any] = dict(server or clients or {})
        numbers = {name: float(value) for name, value in scores.items() if isinstance(value, int | float)}
        return {
            "test_accuracy": next((numbers[name] for name in ACCURACY if name in numbers), None),
            "test_loss": next((numbers[name] for name in LOSS if name in numbers), None),
            "metrics": numbers,
            "notes": self._door.remarks(),
            **spent,
        }

    def _by_clients(self, t: int, w: Weights) -> tuple[MetricRecord | None, dict[str, int]]:
        """Flower's evaluation on the clients' data, on a share of those connected that we draw ourselves; and what is
        sent for it."""
        share = self._inner.fraction_evaluate
        if not share or not len(here := self._door.connected()):
            return None, {}
        number = max(1, int(share * len(here)))
        drawn = sorted(int(k) for k in stream(self._seed, t, "evaluate").choice(here, size=number, replace=False))
        replies = self._door.evaluate(t, drawn, w, self._config)
        spent = {"uplink_bytes": SCALARS * len(replies), "downlink_bytes": self._layout.num_bytes * len(drawn)}
        return self._inner.evaluated(t, replies) if replies else None, spent


def log_round(record: Mapping[str, Any], rounds: int) -> None:
    log(
        INFO,
        "[ROUND %d/%d] available %d, %s%d may be chosen, chosen %s%s%s",
        record["round"],
        rounds,
        record["num_available"],
        "filtered: " if record["did_filter"] else "",
        record["num_filtered"],
        record["selected"],
        "" if record["test_accuracy"] is None else f", accuracy {record['test_accuracy']:.3f}",
        "" if record["test_loss"] is None else f", loss {record['test_loss']:.3f}",
    )
    for client, reason in record["refused"].items():
        log(WARNING, "\tclient %s refused: %s", client, reason)
    for note in record["notes"]:
        log(INFO, "\t%s", note)
