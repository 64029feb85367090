"""`FilFL`: client filtering around a strategy of Flower. A round is `filfl.core.round`, as in the simulator."""

import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from logging import INFO, WARNING
from pathlib import Path
from typing import Any, Literal

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.common import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from filfl.config.config import Config
from filfl.config.plugins import name_of
from filfl.core.guard import MAX_EXAMPLES
from filfl.errors import ConfigError
from filfl.filtering import Filter, FilterFunction
from filfl.filtering.filtering_set import FilteringSet
from filfl.filtering.judges import JUDGES
from filfl.flower.plugins import ConnectedNodes, Evaluate, LossFunction, StrategyAverage
from filfl.flower.run import AfterRound, FlowerRun, Settings
from filfl.flower.run_directory import AUTO, new_directory
from filfl.flower.wrapped_strategy import WrappedStrategy
from filfl.runs import Callback, RunCallback
from filfl.selection import Selection, Selects

TIMEOUT = 3600.0
"""The default of Flower, in seconds."""


class FilFL(Strategy):
    """Client filtering around any strategy of Flower that averages models.

    strategy: a Flower strategy. It makes the messages for the selected nodes, and averages their replies. Its own
        sampling (fraction_train, min_train_nodes, ...) is not used; `k` and `min_nodes` replace it.
    filter, selection: names as in a filfl config, or your own functions or plug-ins.
    k: the number of nodes that train per round, or their share of the connected nodes (a float). h: filter at least
        every h rounds.
    evaluate: arrays -> their loss on the server's filtering set, or a function like Flower's `evaluate_fn`, or a
        `FilteringSet`, which is faster.
    trusted: the names of nodes whose data is trusted, as in clients.csv. With {"filter.data": "federated"} or
        "variable", where nodes judge, only these judge. Without it, bad nodes judge too.
    seed: of every decision of the server.
    options: further keys of a filfl config, such as {"selection.d": 10, "filter.cap": 20}. Two defaults differ from the
        simulator's. "filter.when" is "figure-2": nodes that leave or come back do not cause another filtering.
        "filter.least" is k: Krum, Bulyan and differential privacy assume k replies, and no node is ever left alone.
    config: a whole filfl config instead of the seven arguments before. Its sections on data, model and training do not
        apply here; they are stored with the run.
    out: a directory for the run store. An interrupted run in it is resumed, and a finished one is continued if more
        rounds are asked for. By default a new directory in runs/; None stores nothing.
    min_nodes, wait: raise an error if fewer nodes are connected after `wait` seconds (default: k, or the
        min_available_nodes of the strategy where k is a share).
    max_examples: a node that claims more examples is refused.
    identity: "node": a client is identified by its node id (with keys, the same one after a reconnect); "partition": by
        its partition id; "auto": by partition in a simulation, where node ids differ in every run, otherwise by node.
    callbacks: functions (record, state) that are called after every round, and `filfl.EarlyStopping`.
    after_round: (round, arrays, metrics), called after every round with the model and the metrics of its test.
    """

    def __init__(
        self,
        strategy: Strategy,
        filter: str | FilterFunction | Filter = "dgf",
        selection: str | Selects | Selection = "random",
        k: int | float = 5,
        h: int = 5,
        evaluate: Evaluate | FilteringSet | None = None,
        seed: int = 0,
        trusted: Sequence[str] = (),
        options: Mapping[str, Any] | None = None,
        *,
        config: Config | None = None,
        out: str | Path | None = AUTO,
        min_nodes: int | None = None,
        wait: float = 300.0,
        max_examples: int = MAX_EXAMPLES,
        identity: Literal["auto", "node", "partition"] = "auto",
        callbacks: Iterable[Callback | RunCallback] = (),
        after_round: AfterRound | None = None,
    ) -> None:
        self.strategy = strategy
        wrapped = WrappedStrategy(strategy)
        share = k if isinstance(k, float) else None
        for key in options or {}:
            if key.split(".")[0] in ("aggregation", "availability", "attack"):
                raise ConfigError(f"{key} has no effect on Flower, where the strategy and the nodes decide; remove it")
        if config is None:
            keys = {"filter.period": h, "filter.when": "figure-2", "seed": seed}
            keys |= {"data.name": "arrays", "model.name": "own", "selection.k": 1 if share else k}
            keys |= {} if share else {"filter.least": k}
            keys |= {"data.trusted": list(trusted)} if trusted else {}
            keys |= {"filter.name": filter} if isinstance(filter, str) else {}
            keys |= {"selection.name": selection} if isinstance(selection, str) else {}
            config = Config.read({**keys, **(options or {})}).with_own(
                filter=None if isinstance(filter, str) else filter,
                selection=None if isinstance(selection, str) else selection,
            )
        if config.evaluate.train_samples:
            raise ConfigError(
                "evaluate.train_samples has no effect on Flower, where the server has no training samples; remove it"
            )
        self.config = replace(
            config, availability=ConnectedNodes(share=share), aggregation=StrategyAverage(strategy=wrapped.name)
        )
        if share is not None and not 0 < share <= 1:
            raise ConfigError(f"k must be a number of nodes, or a share of them between 0 and 1 (got {k!r})")
        if min_nodes is None:
            min_nodes = config.selection.k if share is None else wrapped.min_available_nodes
        self._check(evaluate, identity, wrapped)
        self._settings = Settings(
            config=self.config,
            wrapped=wrapped,
            evaluate=evaluate if evaluate is None or isinstance(evaluate, FilteringSet) else LossFunction(evaluate),
            out=None if out is None or out == AUTO else Path(out).expanduser(),
            new_out=out == AUTO,
            share=share,
            min_nodes=min_nodes,
            wait=wait,
            max_examples=max_examples,
            identity=identity,
            callbacks=list(callbacks),
            after_round=after_round,
        )
        self._run: FlowerRun | None = None
        self._in_start = False

    def _check(self, evaluate: Evaluate | FilteringSet | None, identity: str, wrapped: WrappedStrategy) -> None:
        options = self.config.filter
        judged_here = options.name not in ("none", "keep-all") and options.data not in JUDGES
        if judged_here and evaluate is None:
            raise ConfigError(
                f'filter.name = "{options.name}" needs evaluate: a function (arrays) -> loss on a filtering set, or a '
                "filfl.flower.FilteringSet"
            )
        if (options.surrogate or options.valued_by) and not isinstance(evaluate, FilteringSet):
            what = 'filter.reward = "ensemble"' if options.surrogate else f'filter.values = "{options.values}"'
            raise ConfigError(f"{what} needs evaluate to be a filfl.flower.FilteringSet")
        if identity not in ("auto", "node", "partition"):
            raise ConfigError(f'identity must be "auto", "node" or "partition" (got {identity!r})')
        if wrapped.accounts_privacy and options.method is not None:
            raise ConfigError(
                "a privacy accountant cannot be combined with a filter: the filter looks at the updates of all nodes, "
                'which the accountant does not count; use filter="none", or the wrapper without accountant'
            )

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = TIMEOUT,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run `num_rounds` rounds: Flower's loop over the four methods below, with the run store.

        timeout: seconds to wait for the replies to one request; a node that is later counts as absent in that round.
        """
        began = time.monotonic()
        train_config = ConfigRecord() if train_config is None else train_config
        evaluate_config = ConfigRecord() if evaluate_config is None else evaluate_config
        self._log_start(num_rounds, initial_arrays)
        run = self._open(grid, initial_arrays, num_rounds, timeout)
        result, arrays, stopped, self._in_start = Result(), run.arrays, None, True
        send = run.clients.messaging.send
        try:
            if evaluate_fn and not run.done and (metrics := evaluate_fn(0, arrays)) is not None:
                result.evaluate_metrics_serverapp[0] = metrics
            for t in range(run.done + 1, num_rounds + 1):
                replies = send(self.configure_train(t, arrays, train_config, grid))
                averaged, metrics = self.aggregate_train(t, replies)
                arrays = arrays if averaged is None else averaged
                if metrics is not None:
                    result.train_metrics_clientapp[t] = metrics
                replies = send(self.configure_evaluate(t, arrays, evaluate_config, grid))
                if (metrics := self.aggregate_evaluate(t, replies)) is not None:
                    result.evaluate_metrics_clientapp[t] = metrics
                tested = evaluate_fn(t, arrays) if evaluate_fn and run.tests(t) else None
                if tested is not None:
                    result.evaluate_metrics_serverapp[t] = tested
                if stopped := run.end_round(tested):
                    log(INFO, "stopped after round %d of %d: %s", t, num_rounds, stopped)
                    break
            run.close(stopped)
        finally:
            run.stack.close()
            self._run, self._in_start = None, False
        log(INFO, "finished in %.1f s", time.monotonic() - began)
        return replace(result, arrays=arrays)

    def _open(self, grid: Grid, arrays: ArrayRecord, rounds: int | None, timeout: float) -> FlowerRun:
        settings = replace(self._settings, out=new_directory()) if self._settings.new_out else self._settings
        self._run = run = FlowerRun.open(settings, grid, arrays, rounds, timeout)
        return run

    def _log_start(self, num_rounds: int, arrays: ArrayRecord) -> None:
        options, selection, wrapped = self.config.filter, self.config.selection, self._settings.wrapped
        share = self._settings.share
        number = f"{share:.0%} of the nodes" if share else f"{selection.k} nodes"
        log(INFO, "FilFL around %s: %d rounds", wrapped.name, num_rounds)
        chosen = f"selection {name_of('selection', selection)} of {number}"
        log(INFO, "\tfilter %s every %d rounds, %s", options.name, options.period, chosen)
        log(INFO, "\t%.3g MB of weights per model", sum(len(array.data) for array in arrays.values()) / 1e6)
        if wrapped.samples_itself:
            log(WARNING, "fraction_train of the wrapped strategy is ignored: k = %s train", number)
        if wrapped.own_start:
            log(
                WARNING,
                "%s has its own start, which is not called: FilFL.start runs the rounds. For what it does after each "
                "round, use after_round=(round, arrays, metrics) of FilFL",
                wrapped.own_start,
            )

    # The methods of a strategy. Flower's loop calls them, and so does that of a strategy around this one.

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Line 3 of Algorithm 1: messages to all nodes in a filter round, otherwise to the selected ones."""
        if not self._in_start and (self._run is None or server_round <= self._run.done):
            self._begin_under_other_loop(arrays, grid)
        assert self._run is not None
        return self._run.begin(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Filter, select and average."""
        return self._opened("aggregate_train").finish(server_round, replies)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        return self._opened("configure_evaluate").ask_to_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        run = self._opened("aggregate_evaluate")
        metrics = run.evaluated(server_round, replies)
        if not self._in_start:
            run.end_round()
        return metrics

    def summary(self) -> None:
        self.strategy.summary()

    def close(self) -> None:
        """Finish the run store of a run that another strategy's loop has driven. It happens at the latest when the
        program ends."""
        if self._run is not None:
            self._run.close()
            self._run = None

    def _opened(self, method: str) -> FlowerRun:
        if self._run is None:
            raise ConfigError(f"{method} was called before configure_train")
        return self._run

    def _begin_under_other_loop(self, arrays: ArrayRecord, grid: Grid) -> None:
        """Open a run whose loop is that of a strategy around this one, or a function of the user."""
        self.close()
        if self.config.filter.transport == "logits":
            raise ConfigError(
                'filter.transport = "logits" needs FilFL.start: replies have logits instead of weights, and a strategy '
                'around FilFL would take them for weights. Put FilFL outermost, or set filter.transport to "models"'
            )
        run = self._open(grid, arrays, None, TIMEOUT)
        weakref.finalize(self, run.close)
