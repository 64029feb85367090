"""The test of the global model after a round, and the log of the rounds."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from logging import INFO, WARNING
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.common import log
from flwr.serverapp.strategy import Result

from filfl.core.metering import SCALARS
from filfl.errors import one_line
from filfl.flower.grid_clients import GridClients
from filfl.rng import stream
from filfl.runs.metrics import ACCURACY_NAMES, LOSS_NAMES
from filfl.weights import Weights


@dataclass(frozen=True)
class FederatedTest:
    """Tests the model by the server's own function, and by the clients where the strategy asks for that."""

    clients: GridClients
    seed: int
    config: ConfigRecord
    evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None
    result: Result = field(default_factory=Result)

    def before_first_round(self, arrays: ArrayRecord) -> None:
        if self.evaluate_fn and (metrics := self.evaluate_fn(0, arrays)) is not None:
            self.result.evaluate_metrics_serverapp[0] = metrics

    def __call__(self, t: int, w: Weights) -> dict[str, Any]:
        """The test results of the model w, for the record of round t."""
        clients, sent = self._by_clients(t, w)
        server = self.evaluate_fn(t, self.clients.arrays(w)) if self.evaluate_fn else None
        if server is not None:
            self.result.evaluate_metrics_serverapp[t] = server
        if clients is not None:
            self.result.evaluate_metrics_clientapp[t] = clients
        scores: Mapping[str, Any] = dict(server or clients or {})
        # Where clients evaluate, the names are theirs.
        numbers = {one_line(name): float(value) for name, value in scores.items() if isinstance(value, int | float)}
        return {
            "test_accuracy": next((numbers[name] for name in ACCURACY_NAMES if name in numbers), None),
            "test_loss": next((numbers[name] for name in LOSS_NAMES if name in numbers), None),
            "metrics": numbers,
            "notes": self.clients.take_notes(),
            **sent,
        }

    def _by_clients(self, t: int, w: Weights) -> tuple[MetricRecord | None, dict[str, int]]:
        """Flower's evaluation on the data of a random share of the connected clients; and its bytes."""
        share = self.clients.strategy.fraction_evaluate
        if not share or not len(connected := self.clients.connected()):
            return None, {}
        number = max(1, int(share * len(connected)))
        drawn = stream(self.seed, t, "evaluate").choice(connected, size=number, replace=False)
        ids = sorted(int(k) for k in drawn)
        replies = self.clients.evaluate(t, ids, w, self.config)
        sent = {"uplink_bytes": SCALARS * len(replies), "downlink_bytes": self.clients.layout.num_bytes * len(ids)}
        return self.clients.strategy.evaluated(t, replies) if replies else None, sent


def log_round(record: Mapping[str, Any], rounds: int, names: Mapping[int, str]) -> None:
    """Log what happened in a round. `names` are those of the clients; one without a name is known by its number."""
    scores = {name: record[f"test_{name}"] for name in ("accuracy", "loss")}
    tested = "".join(f", {name} {score:.3f}" for name, score in scores.items() if score is not None)
    eligible = f"{'filtered: ' if record['did_filter'] else ''}{record['num_filtered']} eligible"
    selected = ", ".join(names.get(k, str(k)) for k in record["selected"])
    known = f"available {record['num_available']}, {eligible}, selected {selected}{tested}"
    log(INFO, "[ROUND %d/%d] %s", record["round"], rounds, known)
    for client, reason in record["refused"].items():
        log(WARNING, "\tclient %s refused: %s", names.get(int(client), client), reason)
    for note in record["notes"]:
        log(INFO, "\t%s", note)
