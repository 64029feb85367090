"""`FilFL`: client filtering around a strategy of Flower. A round is `filfl.core.round`, as in the simulator."""

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from logging import INFO, WARNING
from pathlib import Path
from typing import Any, Literal

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.common import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from filfl.config.config import Config
from filfl.core.guard import MAX_EXAMPLES
from filfl.core.server import State
from filfl.errors import ConfigError, PluginError, RunError
from filfl.filtering import Filter, FilterFunction
from filfl.filtering.filtering_set import FilteringSet
from filfl.filtering.judges import JUDGES
from filfl.flower.grid_clients import GridClients
from filfl.flower.messaging import Messaging
from filfl.flower.node_registry import NODES, NodeRegistry
from filfl.flower.plugins import ByFunction, ConnectedNodes, Evaluate, StrategyAverage
from filfl.flower.records import layout_of, to_weights
from filfl.flower.testing import FederatedTest, log_round
from filfl.flower.wrapped_strategy import WrappedStrategy
from filfl.logits.messages import Recipients
from filfl.runs import (
    Callback,
    RunCallback,
    RunStart,
    RunStore,
    finished,
    open_callbacks,
    open_store,
    run_rounds,
    with_seconds,
)
from filfl.runs.files import to_json
from filfl.runs.make_server import make_server
from filfl.runs.seal import CLIENTS, TIMES
from filfl.runs.store import read_times, repair_finished
from filfl.selection import Selection, Selects
from filfl.system import one_thread
from filfl.weights import Layout, Mismatch


class FilFL(Strategy):
    """Client filtering around any strategy of Flower that averages models.

    strategy: a Flower strategy. It makes the messages for the selected nodes, and averages their replies. Its own
        sampling (fraction_train, min_train_nodes, ...) is not used; `k` and `min_nodes` replace it.
    filter, selection: names as in a filfl config, or your own functions or plug-ins.
    k: the number of nodes that train per round. h: filter at least every h rounds.
    evaluate: arrays -> their loss on the server's filtering set, or a `FilteringSet`, which is faster.
    trusted: the names of nodes whose data is trusted, as in clients.csv. With {"filter.data": "federated"} or
        "variable", where nodes judge, only these judge. Without it, bad nodes judge too.
    seed: of every decision of the server.
    options: further keys of a filfl config, such as {"selection.d": 10, "filter.cap": 20, "filter.when": "figure-2"}.
    config: a whole filfl config instead of the seven arguments before. Its sections on data, model and training do not
        apply here; they are stored with the run.
    out: a directory for the run store. An interrupted run in it is resumed.
    min_nodes, wait: raise an error if fewer nodes are connected after `wait` seconds (default: k).
    max_examples: a node that claims more examples is refused.
    identity: "node": a client is identified by its node id (with keys, the same one after a reconnect); "partition": by
        its partition id; "auto": by partition in a simulation, where node ids differ in every run, otherwise by node.
    callbacks: functions (record, state) that are called after every round, and `filfl.EarlyStopping`.
    """

    def __init__(
        self,
        strategy: Strategy,
        filter: str | FilterFunction | Filter = "dgf",
        selection: str | Selects | Selection = "random",
        k: int = 5,
        h: int = 5,
        evaluate: Evaluate | FilteringSet | None = None,
        seed: int = 0,
        trusted: Sequence[str] = (),
        options: Mapping[str, Any] | None = None,
        *,
        config: Config | None = None,
        out: str | Path | None = None,
        min_nodes: int | None = None,
        wait: float = 300.0,
        max_examples: int = MAX_EXAMPLES,
        identity: Literal["auto", "node", "partition"] = "auto",
        callbacks: Iterable[Callback | RunCallback] = (),
    ) -> None:
        self.strategy = strategy
        self._wrapped = WrappedStrategy(strategy)
        if config is None:
            keys = {"filter.period": h, "selection.k": k, "seed": seed, "data.name": "arrays", "model.name": "own"}
            keys |= {"data.trusted": list(trusted)} if trusted else {}
            keys |= {"filter.name": filter} if isinstance(filter, str) else {}
            keys |= {"selection.name": selection} if isinstance(selection, str) else {}
            config = Config.read({**keys, **(options or {})}).with_own(
                filter=None if isinstance(filter, str) else filter,
                selection=None if isinstance(selection, str) else selection,
            )
        self._average = StrategyAverage(strategy=self._wrapped.name)
        self.config = replace(config, availability=ConnectedNodes(), aggregation=self._average)
        self._evaluate = evaluate
        self._check(identity)
        self._out = Path(out) if out else None
        self._min_nodes, self._wait, self._max_examples = min_nodes or config.selection.k, wait, max_examples
        self._identity, self._callbacks = identity, list(callbacks)

    def _check(self, identity: str) -> None:
        options = self.config.filter
        judged_here = options.name not in ("none", "keep-all") and options.data not in JUDGES
        if judged_here and self._evaluate is None:
            raise ConfigError(
                f'filter.name = "{options.name}" needs evaluate: a function (arrays) -> loss on a filtering set, or a '
                "filfl.flower.FilteringSet"
            )
        if (options.surrogate or options.valued_by) and not isinstance(self._evaluate, FilteringSet):
            what = 'filter.reward = "ensemble"' if options.surrogate else f'filter.values = "{options.values}"'
            raise ConfigError(f"{what} needs evaluate to be a filfl.flower.FilteringSet")
        if identity not in ("auto", "node", "partition"):
            raise ConfigError(f'identity must be "auto", "node" or "partition" (got {identity!r})')

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run `num_rounds` rounds. `timeout`: seconds to wait for the replies to one request; a node that is later
        counts as absent in that round."""
        began = time.monotonic()
        V = self._evaluate if isinstance(self._evaluate, FilteringSet) else None
        layout = layout_of(initial_arrays) if V is None else V.layout
        try:
            start = State(to_weights(initial_arrays, layout))
        except Mismatch as reason:
            raise PluginError(f"initial_arrays do not fit the network of the filtering set: {reason}") from None
        registry = NodeRegistry(self._out / NODES if self._out else None)
        options = self.config.filter
        simulated = type(grid).__name__ == "InMemoryGrid"  # the grid of Flower's simulation engine
        clients = GridClients(
            messaging=Messaging(grid, float(timeout)),
            strategy=self._wrapped,
            layout=layout,
            registry=registry,
            train_config=train_config or ConfigRecord(),
            max_examples=self._max_examples,
            guard=self.config.guard,
            min_nodes=self._min_nodes,
            wait=self._wait,
            queries="always" if options.method and options.data in JUDGES else self.config.selection.queries,
            by_partition=self._identity == "partition" or (self._identity == "auto" and simulated),
        )
        nodes, average = ConnectedNodes(clients=clients), replace(self._average, clients=clients, metrics={})
        config = replace(self.config, rounds=num_rounds, availability=nodes, aggregation=average)
        self._log_start(num_rounds, layout)
        test = FederatedTest(clients, config.seed, evaluate_config or ConfigRecord(), evaluate_fn)

        def follow(record: Mapping[str, Any], state: State) -> None:
            """Log the round and store the registered clients."""
            log_round(record, num_rounds, registry.names())
            if self._out:
                registry.save()
                registry.registered(config.data.trusted).write(self._out / CLIENTS)

        with ExitStack() as stack:
            store = stack.enter_context(self._store(self._out, config, layout, registry)) if self._out else None
            if V is not None:
                stack.enter_context(one_thread())  # an evaluation uses one thread, so that its bits are always the same
            judge = ByFunction(self._evaluate, layout) if V is None and self._evaluate else None
            trusted = partial(registry.named, config.data.trusted) if config.data.trusted else None
            server = make_server(config, clients, layout, V, judge=judge, trusted=trusted)
            for warning in server.warnings:
                log(WARNING, warning)
            if not (store and store.resumed):
                test.before_first_round(clients.arrays(start.w))
            before = with_seconds(store.records, read_times(store.directory / TIMES)) if store else []
            run = RunStart(config, self._out, before, partial(log, INFO))
            callbacks = stack.enter_context(open_callbacks([follow, *self._callbacks], run))
            state, records, stopped = run_rounds(
                server, start, num_rounds, test, config.evaluate.every, callbacks, store
            )
            if stopped:
                log(INFO, "stopped after round %d of %d: %s", len(records), num_rounds, stopped)
            if store:
                # The server knows a frozen part only where it has the network.
                store.finish(layout.unflatten(state.w) if V is None else V.state(state.w), stopped=stopped)
        log(INFO, "finished in %.1f s", time.monotonic() - began)
        return replace(test.result, arrays=clients.arrays(state.w), train_metrics_clientapp=average.metrics)

    # The parts of a run, from the config and the federation.

    @contextmanager
    def _store(self, out: Path, config: Config, layout: Layout, registry: NodeRegistry) -> Iterator[RunStore]:
        """The run store in `out`, with the state to resume from."""
        # The initial weights do not identify the run: they may differ when it is resumed.
        entries = [(e.name, e.shape, str(e.dtype)) for e in layout.entries]
        fingerprint = hashlib.sha256(to_json([config.identity(), entries]).encode()).hexdigest()
        device, say = torch.get_default_device(), partial(log, INFO)
        if summary := finished(out, fingerprint):
            if registry.by_client:
                repair_finished(out, config, registry.registered(config.data.trusted), summary, say)
            raise RunError(f"{out} holds a finished run; choose another directory")
        with open_store(out, config, registry.registered(config.data.trusted), fingerprint, device, True, say) as store:
            if store.resumed:
                # In a new run, nodes do not have V.
                store.resumed = replace(store.resumed, recipients=Recipients())
                self._wrapped.restore(store.resumed.memory.items())
                log(INFO, "resuming after round %d of the run in %s", len(store.records), out)
            yield store

    def _log_start(self, num_rounds: int, layout: Layout) -> None:
        options, selection = self.config.filter, self.config.selection
        chosen = f"selection {type(selection).__name__} of {selection.k}"
        log(INFO, "FilFL around %s: %d rounds", self._wrapped.name, num_rounds)
        log(INFO, "\tfilter %s every %d rounds, %s", options.name, options.period, chosen)
        log(INFO, "\t%.3g MB of weights per model", layout.num_bytes / 1e6)
        if self._wrapped.ignored:
            log(WARNING, "fraction_train of the wrapped strategy is ignored: k = %d nodes train", selection.k)

    # The methods of a strategy, for callers that use them one by one: those of the wrapped strategy.

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        return self._wrapped.strategy.configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        return self._wrapped.strategy.aggregate_train(server_round, replies)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        return self._wrapped.strategy.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        return self._wrapped.strategy.aggregate_evaluate(server_round, replies)

    def summary(self) -> None:
        self._wrapped.strategy.summary()
