"""A whole federated run on one machine: `filfl.simulate`."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import nn

from filfl.config.config import Config
from filfl.core.server import State
from filfl.data import Dataset, FederatedData
from filfl.errors import ConfigError
from filfl.evaluation import Loss, Metric
from filfl.filtering import Filter, FilterFunction
from filfl.models import Model
from filfl.runs import (
    Callback,
    RunCallback,
    RunStart,
    finished,
    open_callbacks,
    open_store,
    read_run,
    run_rounds,
    with_seconds,
)
from filfl.runs.client_table import ClientTable
from filfl.runs.store import CLIENTS, MODEL, TIMES, read_times
from filfl.runs.summary import summarize
from filfl.selection import Selection, Selects
from filfl.simulation.build import Parts, make_parts, open_server
from filfl.system import one_thread


@dataclass(frozen=True)
class Result:
    """The result of a run."""

    config: Config
    records: list[dict[str, Any]]
    summary: dict[str, Any]
    model: nn.Module
    """The network with the final weights."""
    directory: Path | None
    already_finished: bool = False

    @property
    def accuracy(self) -> list[float | None]:
        """The test accuracy of every round; None where it was not tested."""
        return [record["test_accuracy"] for record in self.records]


def simulate(
    config: Config | Mapping[str, Any] | str | Path,
    data: FederatedData | Dataset | None = None,
    model: Callable[[], nn.Module] | Model | None = None,
    loss: Loss | None = None,
    metrics: Mapping[str, Metric] | None = None,
    filter: FilterFunction | Filter | None = None,
    selection: Selects | Selection | None = None,
    callbacks: Sequence[Callback | RunCallback] = (),
    *,
    out: str | Path | None = None,
    resume: bool = False,
    say: Callable[[str], None] = print,
) -> Result:
    """Run federated learning with client filtering on this machine.

    config: a `Config`, a mapping such as {"rounds": 20, "filter.name": "rgf"}, or a TOML file.
    data, model: your own `FederatedData`, and a function that makes a new network, instead of the config's.
    loss: (outputs, targets) -> mean loss; by default cross-entropy, or the mean squared error for numeric targets.
    metrics: {name: (outputs, targets) -> number} on the test set; by default the accuracy, overall and per client.
    filter: (clients, reward, rng) -> `filfl.Filtering`. selection: (pool, k, ask, rng) -> ids.
    callbacks: functions (record, state) that are called after every round, and trackers (docs/trackers.md).
    out: a directory for the run store; by default nothing is written. resume: resume the run in `out`. Your own
        functions must be the same as before: that cannot be checked.
    say: receives the messages for a person, such as a refused checkpoint.
    """
    if resume and out is None:
        raise ConfigError("resume needs out, the directory of the run to resume")
    config = Config.read(config).with_own(data=data, model=model, filter=filter, selection=selection)
    config.require_objects()
    directory = Path(out) if out is not None else None
    with one_thread():
        parts = make_parts(config, loss, metrics, say)
        if directory and resume and (summary := finished(directory, parts.fingerprint())):
            return _already_finished(parts, directory, summary, callbacks, say)
        with ExitStack() as opened:
            store = None
            if directory:
                clients = ClientTable.of(parts.data, config)
                run = (directory, config, clients, parts.fingerprint(), parts.net.device)
                store = opened.enter_context(open_store(*run, resume, say))
            server = opened.enter_context(open_server(parts, say))
            before = with_seconds(store.records, read_times(store.directory / TIMES)) if store else []
            start = RunStart(config, directory, before, say)
            with open_callbacks([_warn_if_all_refused(say), *callbacks], start) as watchers:
                state, records = run_rounds(
                    server, parts.start, config.rounds, parts.test, config.evaluate.every, watchers, store
                )
            summary = store.finish(parts.net.layout.unflatten(state.w)) if store else summarize(records)
        parts.net.load(state.w)
        return Result(config, records, summary, parts.net.module, directory)


def _already_finished(
    parts: Parts,
    directory: Path,
    summary: dict[str, Any],
    callbacks: Sequence[Callback | RunCallback],
    say: Callable[[str], None],
) -> Result:
    """The result of a run that was finished before."""
    parts.net.module.load_state_dict(safetensors.torch.load_file(directory / MODEL))
    ClientTable.of(parts.data, parts.config).repair(directory / CLIENTS)
    run = read_run(directory)
    with open_callbacks(callbacks, RunStart(parts.config, directory, with_seconds(run.records, run.times), say)):
        pass  # a tracker may have missed some of its rounds
    summary = {**summarize(run.records), **summary}
    return Result(parts.config, run.records, summary, parts.net.module, directory, already_finished=True)


def _warn_if_all_refused(say: Callable[[str], None]) -> Callback:
    """Warns once when every update of a round is refused: often the model or the loss is wrong."""
    warned = False

    def watch(record: Mapping[str, Any], state: State) -> None:
        nonlocal warned
        asked = set(map(str, record["considered"] or record["selected"]))
        if not warned and asked and asked <= record["refused"].keys():
            warned = True
            k, reason = next(iter(record["refused"].items()))
            say(f"round {record['round']}: every update was refused; client {k}: {reason}")

    return watch
