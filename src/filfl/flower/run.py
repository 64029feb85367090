"""A run on Flower, between the calls of Flower's loop: `configure_train`, `aggregate_train`, `configure_evaluate` and
`aggregate_evaluate`. A round is `filfl.core.round`, as in the simulator."""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from logging import INFO, WARNING
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.common import log
from flwr.serverapp import Grid

from filfl.config.config import Config
from filfl.core.metering import SCALARS
from filfl.core.round import BegunRound, begin_round, finish_round
from filfl.core.selector import Selector
from filfl.core.server import Outcome, Record, Server, State
from filfl.errors import PluginError, RunError, one_line
from filfl.filtering.filtering_set import FilteringSet
from filfl.filtering.judges import JUDGES
from filfl.flower.grid_clients import GridClients
from filfl.flower.logit_messages import NO_MOD
from filfl.flower.messaging import Messaging
from filfl.flower.node_registry import NODES, NodeRegistry
from filfl.flower.plugins import ARRAYS, ByFunction, ConnectedNodes, LossFunction, StrategyAverage
from filfl.flower.records import layout_of, to_weights
from filfl.flower.run_directory import can_write, open_run_store
from filfl.flower.wrapped_strategy import WrappedStrategy
from filfl.rng import stream
from filfl.runs import Callback, RunCallback, RunLog, RunStart, open_callbacks
from filfl.runs.callbacks import with_seconds
from filfl.runs.loop import UNTESTED, stored_record
from filfl.runs.make_server import make_server
from filfl.runs.metrics import ACCURACY_NAMES, LOSS_NAMES
from filfl.runs.seal import CLIENTS, TIMES
from filfl.runs.store import read_times
from filfl.system import Stopwatch, one_thread
from filfl.weights import Layout, Mismatch, Weights

LOGGED_METRICS = 10
"""At most this many metrics of training are logged per round."""
WITHHELD = "the replies of this round were not passed on to filfl; the model is unchanged"
PROBABILITIES = (
    "the model's outputs on the filtering set are probabilities, but the loss and the ensemble reward need logits, the "
    "scores before the softmax; remove the last softmax, or return numpy.log(p + 1e-12)"
)
MUCH_WORSE = 1.5
"""A loss on V that is this many times that after the last filtering is noted."""
BETWEEN = "since the last filtering the loss of the model on the filtering set has risen"
BETWEEN_HINT = (
    "a client may send bad updates only between filterings, or the learning rate is too large; "
    "a smaller filter.period (h = 1), or a strategy such as FedMedian, protects against such clients"
)
AfterRound = Callable[[int, ArrayRecord, MetricRecord], None]
"""(round, the model after it, the metrics of its test), like Flower's `evaluate_fn`."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The arguments of `filfl.flower.FilFL`."""

    config: Config
    wrapped: WrappedStrategy
    evaluate: LossFunction | FilteringSet | None
    out: Path | None
    new_out: bool
    """Whether `out` was chosen by filfl: then a run without it is better than none."""
    share: float | None
    """The share of the connected nodes that train per round; None: `selection.k` nodes."""
    min_nodes: int
    wait: float
    max_examples: int
    identity: str
    callbacks: Sequence[Callback | RunCallback]
    after_round: AfterRound | None

    @property
    def V(self) -> FilteringSet | None:
        return self.evaluate if isinstance(self.evaluate, FilteringSet) else None


@dataclass(kw_only=True, eq=False)
class FlowerRun:
    """A run in progress."""

    settings: Settings
    config: Config
    rounds: int | None
    """The number of rounds; None if another strategy's loop drives the run and does not tell."""
    clients: GridClients
    registry: NodeRegistry
    server: Server
    average: StrategyAverage
    layout: Layout
    state: State
    log: RunLog
    stack: ExitStack
    """What is closed with the run: the store and the callbacks."""
    _arrays: ArrayRecord
    """The model of `state`, as Flower has it."""
    _begun: BegunRound | None = None
    _happened: Record | None = None
    _sent_at: float = 0.0
    _clock: Stopwatch = field(default_factory=Stopwatch)
    _evaluation: tuple[list[int], list[Message]] = field(default_factory=lambda: ([], []))
    _by_clients: MetricRecord | None = None
    _evaluation_bytes: Mapping[str, int] = field(default_factory=dict)
    _filtered: tuple[Weights, float] | None = None
    """The model after the last filter round, and its loss on V."""
    _closed: bool = False

    @classmethod
    def open(
        cls, settings: Settings, grid: Grid, initial: ArrayRecord, rounds: int | None, timeout: float
    ) -> "FlowerRun":
        """Prepare a run: read what is stored of it, and try `evaluate` before anybody trains."""
        V, wrapped = settings.V, settings.wrapped
        layout = layout_of(initial) if V is None else V.fitted(initial)
        try:
            start = State(to_weights(initial, layout))
        except Mismatch as reason:
            raise PluginError(f"initial_arrays do not fit the network of the filtering set: {reason}") from None
        judge = None
        if isinstance(settings.evaluate, LossFunction):
            settings.evaluate.try_once(initial)
            judge = ByFunction(settings.evaluate, layout)
        out = settings.out if not settings.new_out or can_write(settings.out) else None
        registry = NodeRegistry(out / NODES if out else None)
        options, simulated = settings.config.filter, type(grid).__name__ == "InMemoryGrid"
        clients = GridClients(
            messaging=Messaging(grid, float(timeout)),
            strategy=wrapped,
            layout=layout,
            registry=registry,
            max_examples=settings.max_examples,
            guard=settings.config.guard,
            min_nodes=settings.min_nodes,
            wait=settings.wait,
            queries="always" if options.method and options.data in JUDGES else settings.config.selection.queries,
            by_partition=settings.identity == "partition" or (settings.identity == "auto" and simulated),
            simulated=simulated,
        )
        average = StrategyAverage(strategy=wrapped.name, clients=clients, metrics={})
        nodes = ConnectedNodes(share=settings.share, clients=clients)
        config = replace(settings.config, availability=nodes, aggregation=average)
        config = config if rounds is None else replace(config, rounds=rounds)
        with ExitStack() as stack:
            store = open_run_store(stack, out, config, layout, registry, rounds) if out else None
            trusted = partial(registry.named, config.data.trusted) if config.data.trusted else None
            server = make_server(config, clients, layout, V, judge=judge, trusted=trusted)
            for warning in (*server.warnings, *([PROBABILITIES] if V and V.gives_probabilities(start.w) else [])):
                log(WARNING, warning)
            run = cls(
                settings=replace(settings, out=out),
                config=config,
                rounds=rounds,
                clients=clients,
                registry=registry,
                server=server,
                average=average,
                layout=layout,
                state=start,
                log=RunLog([], config.guard.stop_after, store),
                stack=stack,
                _arrays=initial,
            )
            before = with_seconds(store.records, read_times(store.directory / TIMES)) if store else []
            told = RunStart(config, out, before, partial(log, INFO))
            run.log.callbacks = stack.enter_context(open_callbacks([run._follow, *settings.callbacks], told))
            run.state = run.log.start(start)
            if run.state is not start:
                run._resume()
            run.stack = stack.pop_all()
        return run

    @property
    def arrays(self) -> ArrayRecord:
        """The current model."""
        return self._arrays

    @property
    def done(self) -> int:
        """The number of rounds that are finished."""
        return len(self.log.records)

    # The methods of Flower's loop.

    def begin(self, t: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> list[Message]:
        """Lines 3, 10 and 11 of Algorithm 1: the messages to the nodes that train."""
        self._end_pending()
        self._use(arrays)
        self.clients.messaging.grid, self.clients.train_config = grid, config
        self._clock = Stopwatch()
        self._begun = begun = begin_round(t, self.state, self._server(), self._clock)
        by_logits = begun.considered is not None and self.config.filter.transport == "logits"
        # In a round by logits, replies have no weights, and nodes are asked a second time: all of it in `finish`.
        messages = [] if by_logits else self.clients.ask_to_train(t, begun.trains, self.state.w)
        if begun.considered is not None:
            self._compare_with_last_filtering(t)
        self._sent_at = time.perf_counter()
        return messages

    def finish(self, t: int, replies: Iterable[Message]) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Lines 4-9 or 12-16, and 18-19: the new model, or None if it has not changed."""
        begun, self._begun = self._begun, None
        if begun is None or begun.t != t:
            raise RunError(f"aggregate_train was called for round {t} without configure_train")
        self.clients.hand_over(replies)
        self._clock.seconds["train"] += time.perf_counter() - self._sent_at
        with one_thread() if self.settings.V is not None else nullcontext():
            self.state, self._happened = finish_round(begun)  # an evaluation has the same bits with one thread
        _stop_without_logits(self._happened)
        if self.state.w is not begun.state.w:
            self._arrays = self.clients.arrays(self.state.w)
        if begun.considered is not None:
            self._filtered = self.state.w, self._loss(t)
        return None if self.state.w is begun.state.w else self._arrays, self.average.metrics.get(t)

    def ask_to_evaluate(self, t: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> list[Message]:
        """The messages to a random share of the connected clients to evaluate the model."""
        self._use(arrays)
        self.clients.messaging.grid = grid
        share = self.settings.wrapped.fraction_evaluate
        if not self.tests(t) or not share or not len(connected := self.clients.connected()):
            return []
        number = max(1, int(share * len(connected)))
        drawn = stream(self.config.seed, t, "evaluate").choice(connected, size=number, replace=False)
        ids = sorted(int(k) for k in drawn)
        messages = self.clients.ask_to_evaluate(t, ids, self.state.w, config)
        self._evaluation = ids, messages
        self._sent_at = time.perf_counter()
        return list(messages)

    def evaluated(self, t: int, replies: Iterable[Message]) -> MetricRecord | None:
        """The mean of the clients' metrics."""
        (ids, messages), self._evaluation = self._evaluation, ([], [])
        if not ids:
            return None
        usable = self.clients.evaluations(t, ids, self.state.w, messages, replies)
        self._clock.seconds["evaluate"] += time.perf_counter() - self._sent_at
        down = self.layout.num_bytes * len(messages)
        self._evaluation_bytes = {"uplink_bytes": SCALARS * len(usable), "downlink_bytes": down}
        if usable:
            self._by_clients, notes = self.settings.wrapped.evaluated(t, usable, self.config.guard.answers)
            for note in notes:
                self.clients.messaging.note(note)
        return self._by_clients

    def tests(self, t: int) -> bool:
        """Whether the model of round t is tested."""
        return t % self.config.evaluate.every == 0 or t == self.rounds

    def end_round(self, by_server: MetricRecord | None = None) -> str | None:
        """Store the round with the test of its model. Returns the reason if a callback ends the run."""
        happened, self._happened = self._happened, None
        if happened is None:
            return None
        scores: Mapping[str, Any] = dict(by_server or self._by_clients or {})
        # Where clients evaluate, the names are theirs.
        numbers = {one_line(name): float(value) for name, value in scores.items() if isinstance(value, int | float)}
        tested = {
            **UNTESTED,
            "test_accuracy": next((numbers[name] for name in ACCURACY_NAMES if name in numbers), None),
            "test_loss": next((numbers[name] for name in LOSS_NAMES if name in numbers), None),
            "metrics": numbers,
            **({"tested_by": "server" if by_server else "nodes"} if scores else {}),
            "notes": self.clients.take_notes(),
            **self._evaluation_bytes,
        }
        self._by_clients, self._evaluation_bytes = None, {}
        record = stored_record(happened, tested)
        stopped = self.log.add(record, self.state, self._clock, last=record["round"] == self.rounds)
        if self.settings.after_round:
            self.settings.after_round(record["round"], self._arrays, MetricRecord(dict[str, Any](numbers)))
        return stopped

    def close(self, stopped: str | None = None) -> None:
        """Finish the run store, after the last round."""
        if self._closed:
            return
        self._closed = True
        with self.stack:
            self._end_pending()
            if store := self.log.store:
                if self.rounds is None:
                    store.set_rounds(self.done)
                # The server knows a frozen part only where it has the network.
                V = self.settings.V
                w = self.state.w
                store.finish(self.layout.unflatten(w) if V is None else V.state(w), stopped=stopped)

    def _loss(self, t: int) -> float:
        """The loss of the model on V; NaN where the server has no V."""
        evaluate = self.settings.evaluate
        if isinstance(evaluate, FilteringSet):
            with one_thread():
                return evaluate.loss(self.state.w)
        return math.nan if evaluate is None else evaluate(self._arrays, t)

    def _compare_with_last_filtering(self, t: int) -> None:
        """Note a model that has become worse on V since the last filtering: between two filterings nobody judges."""
        if self._filtered is None or self._filtered[0] is self.state.w:
            return
        then, now = self._filtered[1], self._loss(t)
        if now > MUCH_WORSE * then or (math.isnan(now) and math.isfinite(then)):
            self.clients.messaging.note(f"{BETWEEN} from {then:.4g} to {now:.4g}; {BETWEEN_HINT}")

    def _resume(self) -> None:
        """The model of the resumed state, with the types that the strategy gave it."""
        memory = self.state.memory
        self.settings.wrapped.restore({k: v for k, v in memory.items() if not k.startswith(ARRAYS)}.items())
        precise = {key.removeprefix(ARRAYS): value for key, value in memory.items() if key.startswith(ARRAYS)}
        arrays = self.layout.unflatten(self.state.w) | {name: value.cpu() for name, value in precise.items()}
        self._arrays = ArrayRecord(arrays)
        self.clients.reuse(self.state.w, self._arrays)

    def _server(self) -> Server:
        """The server of the next round, whose K may depend on the number of connected nodes."""
        if self.settings.share is None:
            return self.server
        k = max(1, int(self.settings.share * len(self.clients.connected())))
        return replace(self.server, selector=Selector(self.config.seed, replace(self.config.selection, k=k)))

    def _use(self, arrays: ArrayRecord) -> None:
        """Go on with these arrays: a strategy around this one may have changed them, as one with noise does."""
        if arrays is self._arrays:
            return
        try:
            w = to_weights(arrays, self.layout)
        except Mismatch as reason:
            raise PluginError(f"the arrays do not fit the model of this run: {reason}") from None
        self.state, self._arrays = replace(self.state, w=w), arrays
        self.clients.reuse(w, arrays)

    def _end_pending(self) -> None:
        """End a round whose replies or evaluation a strategy around this one has not passed on."""
        if (begun := self._begun) is not None:
            self._begun = None
            nothing = Outcome(
                S_f=begun.state.S_f,
                eligible=begun.eligible,
                A_t=[],
                updates={},
                past=begun.state.past,
                latest=begun.state.latest,
                recipients=begun.state.recipients,
                notes=[WITHHELD],
            )
            self._happened = Record.of(begun.t, begun.S_t, nothing, begun.exchange, begun.server, [])
        self.end_round()

    def _follow(self, record: Mapping[str, Any], state: State) -> None:
        """Log the round and store the registered clients."""
        log_round(record, self.rounds, self.registry.names(), self.average.metrics.get(record["round"]))
        if self.settings.out:
            self.registry.save()
            self.registry.registered(self.config.data.trusted).write(self.settings.out / CLIENTS)


def _stop_without_logits(record: Record) -> None:
    """Raise where no node of a filter round has the mod that the logits transport needs."""
    everybody = len(record.refused) >= len(record.considered) > 0
    if record.did_filter and everybody and all(NO_MOD in reason for reason in record.refused.values()):
        raise RunError(f"nobody sent logits: {NO_MOD}, or set filter.transport to models")


def log_round(
    record: Mapping[str, Any], rounds: int | None, names: Mapping[int, str], trained: MetricRecord | None = None
) -> None:
    """Log what happened in a round. `names` are those of the clients; one without a name is known by its number.
    `trained` are the metrics of training as the strategy averaged them."""
    scores = {name: record[f"test_{name}"] for name in ("accuracy", "loss")}
    tested = "".join(f", {name} {score:.3f}" for name, score in scores.items() if score is not None)
    eligible = f"{'filtered: ' if record['did_filter'] else ''}{record['num_filtered']} eligible"
    selected = ", ".join(names.get(k, str(k)) for k in record["selected"])
    known = f"available {record['num_available']}, {eligible}, selected {selected}{tested}"
    log(INFO, "[ROUND %d%s] %s", record["round"], f"/{rounds}" if rounds else "", known)
    shown = [f"{one_line(name, 30)} {value:.4g}" for name, value in (trained or {}).items() if isinstance(value, float)]
    if shown:
        log(INFO, "\tmetrics of training: %s", ", ".join(shown[:LOGGED_METRICS]))
    for client, reason in record["refused"].items():
        log(WARNING, "\tclient %s refused: %s", names.get(int(client), client), reason)
    for note in record["notes"]:
        log(INFO, "\t%s", note)
