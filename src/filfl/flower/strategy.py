"""`FilFL`: client filtering around a strategy of Flower's. The round is `filfl.round`, the same as in the simulator."""

import hashlib
import math
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from logging import INFO, WARNING
from pathlib import Path
from typing import Any, Literal

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.common import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from filfl.aggregation.guard import MOST_EXAMPLES
from filfl.algorithms.fedavg import FedAvg as PlainFedAvg
from filfl.clients import Job
from filfl.config import Config
from filfl.errors import ConfigError, PluginError, RunError
from filfl.filtering import Filter, FilterFunction
from filfl.filtering.judges import JUDGES, LossOf
from filfl.flower.door import GridClients, Manners, Patience
from filfl.flower.federated import Averaged, Connected, Live, OfFlower, Tested, from_simulation, log_round
from filfl.flower.filtering_set import Evaluate, FilteringSet, plain_reward
from filfl.flower.inner import Inner
from filfl.flower.records import layout_of, to_weights
from filfl.flower.roster import NODES, Roster
from filfl.runs import Callback, finished, open_store, run_rounds
from filfl.runs.files import to_json
from filfl.runs.store import CLIENTS
from filfl.selection import OwnSelection, Selection, Selects
from filfl.selection.random import Random
from filfl.server import CountedReward, Handed, State
from filfl.server import FilFL as Server
from filfl.simulation.rewards import make_by_logits, make_reward, make_surrogate
from filfl.simulation.setup import one_thread
from filfl.weights import Layout, Mismatch, Weights

EVERYBODY = 2**62
"""How many clients there may be: nobody knows, so records always list who is there."""


class FilFL(Strategy):
    """Client filtering in front of any strategy of Flower's that averages models.

    strategy: a Flower strategy; it makes the messages for the nodes that we choose, and the average of what they send.
        Its own sampling (fraction_train, min_train_nodes, ...) is not used: `k` and `min_nodes` stand for it.
    filter, selection: names as in a filfl config, or your own functions of the same shape.
    k: how many nodes train a round. h: filter at least every h rounds.
    evaluate: arrays -> their loss on the server's filtering set, or a `FilteringSet`, which is faster.
    seed: of every choice that the server makes.
    options: further keys of a filfl config, such as {"selection.d": 10, "filter.cap": 20, "filter.when": "figure-2"}.
    config: a whole filfl config instead of the six before; what it says of data, model and training is the clients'
        business, and is kept with the run.
    out: a directory for the run store. Where it holds a run that was cut off, it goes on from there.
    min_nodes, wait: an error after `wait` seconds with fewer nodes than this (unset: k).
    most_examples: a node that claims more is refused.
    identity: "node": a client is a node id (with keys the same one when it comes back); "partition": its partition id;
        "auto": by partition in a simulation, where node ids are drawn anew in every run, else by node.
    callbacks: functions (record, state) that are called after every round.
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
        options: Mapping[str, Any] | None = None,
        *,
        config: Config | None = None,
        out: str | Path | None = None,
        min_nodes: int | None = None,
        wait: float = 300.0,
        most_examples: int = MOST_EXAMPLES,
        identity: Literal["auto", "node", "partition"] = "auto",
        callbacks: Iterable[Callback] = (),
    ) -> None:
        self.strategy = strategy
        self._inner = Inner(strategy)
        keys = {
            **({"filter.name": filter} if isinstance(filter, str) else {}),
            "filter.period": h,
            **({"selection.name": selection} if isinstance(selection, str) else {}),
            "selection.k": k,
            "seed": seed,
            "data.name": "arrays",
            "model.name": "own",
            **(options or {}),
        }
        config = config or Config.read(keys).with_own(
            filter=None if isinstance(filter, str) else filter,
            selection=None if isinstance(selection, str) else selection,
        )
        flower = OfFlower(strategy=self._inner.name)
        self.config = replace(config, availability=Connected(), aggregation=flower)
        self._evaluate = evaluate
        self._check(identity)
        self._out = Path(out) if out else None
        self._patience = Patience(answer=math.inf, nodes=wait, at_least=min_nodes or config.selection.k)
        self._most_examples, self._identity, self._callbacks = most_examples, identity, list(callbacks)

    def _check(self, identity: str) -> None:
        options = self.config.filter
        judged_here = options.name not in ("none", "keep-all") and options.data not in JUDGES
        if judged_here and self._evaluate is None:
            raise ConfigError(
                f'filter.name = "{options.name}" needs evaluate: a function (arrays) -> loss on a filtering set of the '
                "server's, or a filfl.flower.FilteringSet"
            )
        if options.reward == "ensemble" and not isinstance(self._evaluate, FilteringSet):
            raise ConfigError('filter.reward = "ensemble" needs evaluate to be a filfl.flower.FilteringSet')
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
        """Run `num_rounds` rounds. `timeout`: seconds to wait for the answers to any one question; whoever is later
        counts as gone in that round."""
        config = replace(self.config, rounds=num_rounds)
        layout = self._layout(initial_arrays)
        start = State(to_weights(initial_arrays, layout))
        began = time.monotonic()
        self._announce(num_rounds, layout)
        with ExitStack() as stack:
            roster = Roster(self._out / NODES if self._out else None)
            manners = self._manners(grid)
            door = GridClients(
                grid,
                self._inner,
                layout,
                roster,
                replace(self._patience, answer=float(timeout)),
                manners,
                train_config or ConfigRecord(),
                self._most_examples,
            )
            store = None
            if self._out:
                fingerprint = _fingerprint(config, layout)
                if finished(self._out, fingerprint):
                    raise RunError(f"{self._out} holds a finished run: choose another directory")
                opened = open_store(
                    self._out, config, roster.registered(), fingerprint, start.w.vector.device, True, _say
                )
                store = stack.enter_context(opened)
                if store.resumed:
                    store.resumed = replace(store.resumed, handed=Handed())  # in a new run nodes have nothing yet
                    log(INFO, "going on after round %d of the run in %s", len(store.records), self._out)
            average = Averaged(inner=self._inner, layout=layout, door=door)
            if store and store.resumed:
                self._inner.recall(store.resumed.memory.items())
            server = self._server(config, layout, door, average, stack)
            test = Tested(door, layout, self._inner, config.seed, evaluate_config or ConfigRecord(), evaluate_fn)
            if evaluate_fn and not (store and store.resumed):
                test.at_start(door.arrays(start.w))

            def follow(record: Mapping[str, Any], state: State) -> None:
                log_round(record, num_rounds)
                if self._out:
                    roster.save()
                    roster.registered().write(self._out / CLIENTS)

            callbacks = [follow, *self._callbacks]
            state, _ = run_rounds(server, start, num_rounds, test, config.evaluate.every, callbacks, store)
            if store:
                store.finish(layout.unflatten(state.w))
            log(INFO, "finished in %.1f s", time.monotonic() - began)
            return replace(test.result, arrays=door.arrays(state.w), train_metrics_clientapp=average.metrics)

    # What Algorithm 1 requires, out of the config and the federation.

    def _server(self, config: Config, layout: Layout, door: GridClients, average: Averaged, stack: ExitStack) -> Server:
        options = config.filter
        reward: Callable[[Mapping[int, torch.Tensor], Weights, LossOf | None], CountedReward]
        surrogate = logits = None
        if isinstance(self._evaluate, FilteringSet):
            stack.enter_context(one_thread())  # a judgement is one thread's: its bits do not depend on the machine
            inference = self._evaluate.inference()
            stack.callback(inference.close)
            reward = make_reward(options, inference, self._evaluate.samples, self._evaluate.loss)
            surrogate = make_surrogate(options, inference, self._evaluate.samples, self._evaluate.loss)
            logits = make_by_logits(options, inference, self._evaluate.samples, self._evaluate.loss)
        else:
            reward = plain_reward(self._evaluate, layout, options.empty == "global")
        return Server(
            seed=config.seed,
            num_clients=EVERYBODY,
            clients=door,
            layout=layout,
            availability=Live(door=door),
            filter=options.method,
            reward=reward,
            judge=JUDGES.get(options.data),
            when=options.when,
            h=options.period,
            n=options.cap,
            selection=config.selection,
            K=config.selection.k,
            job=lambda t: Job(config.seed, t, PlainFedAvg(), None, None, 1, 1.0),  # the strategy's messages say more
            aggregation=average,
            surrogate=surrogate,
            logits=logits,
            verify=options.verify,
            optimum=options.optimum,
            remarks=door.remarks,
        )

    def _layout(self, arrays: ArrayRecord) -> Layout:
        if not isinstance(self._evaluate, FilteringSet):
            return layout_of(arrays)
        layout = self._evaluate.net.layout
        try:
            to_weights(arrays, layout)
        except Mismatch as reason:
            raise PluginError(f"initial_arrays do not fit the network of the filtering set: {reason}") from None
        return layout

    def _manners(self, grid: Grid) -> Manners:
        asks = not isinstance(self.config.selection, Random)
        judges = self.config.filter.data in JUDGES and self.config.filter.name != "none"
        by_partition = self._identity == "partition" or (self._identity == "auto" and from_simulation(grid))
        known = not isinstance(self.config.selection, OwnSelection)
        return Manners(
            hello=asks or judges or by_partition,
            must_answer=(asks and known) or judges,
            by_partition=by_partition,
        )

    def _announce(self, num_rounds: int, layout: Layout) -> None:
        config = self.config
        log(INFO, "FilFL around %s: %d rounds", self._inner.name, num_rounds)
        log(
            INFO,
            "\tfilter %s every %d rounds, selection %s of %d",
            config.filter.name,
            config.filter.period,
            type(config.selection).__name__,
            config.selection.k,
        )
        log(INFO, "\tmodel of %.2f MB", layout.num_bytes / 1e6)
        if self._inner.ignored:
            log(WARNING, "fraction_train of the wrapped strategy is not used: k = %d nodes train", config.selection.k)

    # For who calls the parts of a strategy by hand: they are the wrapped one's.

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        return self._inner.strategy.configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        return self._inner.strategy.aggregate_train(server_round, replies)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        return self._inner.strategy.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        return self._inner.strategy.aggregate_evaluate(server_round, replies)

    def summary(self) -> None:
        self._inner.strategy.summary()


def _fingerprint(config: Config, layout: Layout) -> str:
    """Says which run this is. The initial weights are no part of it: who resumes may have drawn others."""
    entries = [(e.name, e.shape, str(e.dtype)) for e in layout.entries]
    return hashlib.sha256(to_json([config.identity(), entries]).encode()).hexdigest()


def _say(text: str) -> None:
    log(INFO, text)
