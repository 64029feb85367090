"""A whole federated run on one machine: `filfl.simulate`."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
from numpy.typing import NDArray
from torch import nn

from filfl.config.config import Config
from filfl.core.evidence import PREFIX
from filfl.core.round import ALL_REFUSED
from filfl.core.server import State
from filfl.data import Dataset, FederatedData
from filfl.data.inputs import INPUTS, Inputs
from filfl.errors import ConfigError
from filfl.evaluation import Augment, Loss, Metric
from filfl.filtering import Filter, FilterFunction
from filfl.models import Model
from filfl.runs import (
    Callback,
    RunCallback,
    RunLog,
    RunStart,
    RunStore,
    finished,
    open_callbacks,
    open_store,
    read_run,
    run_rounds,
    with_seconds,
)
from filfl.runs.progress import ProgressBar
from filfl.runs.seal import MODEL, TIMES
from filfl.runs.store import read_times, repair_finished
from filfl.runs.summary import summarize
from filfl.selection import Selection, Selects
from filfl.simulation.build import Parts, make_parts, open_server
from filfl.simulation.result import Result, Trained
from filfl.system import numerics, one_thread

FROM_PYTHON = "from_python"
"""The key of the functions in summary.json that a run got from Python and that its config does not name."""


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
    augment: Augment | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    progress: bool = True,
    say: Callable[[str], None] = print,
) -> Result:
    """Run federated learning with client filtering on this machine.

    config: a `Config`, a mapping such as {"rounds": 20, "filter.name": "rgf"}, or a TOML file.
    data, model: your own `FederatedData`, and a function that makes a new network, instead of the config's.
    loss: (outputs, targets) -> mean loss; by default cross-entropy, or the mean squared error for numeric targets.
    metrics: {name: (outputs, targets) -> number} on the test set, in addition to the accuracy. The config's
        "evaluate.primary" names the one by which runs are compared.
    filter: (clients, reward, rng) -> `filfl.Filtering`. selection: (pool, k, ask, rng) -> ids.
    augment: (x, rng) -> x, which changes every batch of training inputs.
    callbacks: functions (record, state) that are called after every round and may return `filfl.STOP` to end the run,
        `filfl.EarlyStopping`, and trackers (docs/trackers.md).
    out: a directory for the run store; by default nothing is written. resume: resume the run in `out`. Your own
        functions must be the same as before: that cannot be checked.
    progress: show a progress bar, on stderr if it is a terminal, or in a notebook. Not in worker processes.
    say: receives the messages for a person, such as a refused checkpoint.
    """
    if resume and out is None:
        raise ConfigError("resume needs out, the directory of the run to resume")
    config = Config.read(config).with_own(data=data, model=model, filter=filter, selection=selection)
    config.require_objects()
    callbacks = [*([ProgressBar()] if progress else []), *callbacks]
    with one_thread(), numerics(config.execution.deterministic, config.execution.tf32):
        parts = make_parts(config, loss, metrics, say, augment)
        given = {"loss": loss, "metrics": metrics, "augment": augment}
        from_python = [name for name, function in given.items() if function]
        return _run(parts, Path(out) if out is not None else None, resume, callbacks, say, from_python)


def _run(
    parts: Parts,
    directory: Path | None,
    resume: bool,
    callbacks: Sequence[Callback | RunCallback],
    say: Callable[[str], None],
    from_python: Sequence[str],
) -> Result:
    """from_python: the functions that the config does not have, for the summary."""
    config = parts.config
    if directory and resume and (summary := finished(directory, parts.fingerprint())):
        return _already_finished(parts, directory, summary, callbacks, say)
    with _store(parts, directory, resume, say) as store, open_server(parts, say) as server:
        before = with_seconds(store.records, read_times(store.directory / TIMES)) if store else []
        start = RunStart(config, directory, before, say)
        for warning in server.warnings if not before else ():
            say(warning)
        watching = [_warn_if_all_refused(say, parts.data.names), _repeat_warnings(say, server.warnings)]
        with open_callbacks([*watching, *callbacks], start) as watchers:
            log = RunLog(watchers, config.guard.stop_after, store)
            state, stopped = run_rounds(server, parts.start, config.rounds, parts.test, config.evaluate.every, log)
        if stopped:
            say(f"stopped after round {len(log.records)} of {config.rounds}: {stopped}")
        final = Trained(parts.net.module, Inputs.of(parts.data))
        sets, weights = parts.sets(), parts.net.state(state.w)
        tests = {**sets, **parts.constants(), **parts.tested_clients(state.w)}
        facts = {**tests, INPUTS: final.inputs.table(), FROM_PYTHON: list(from_python)}
        summary = store.finish(weights, facts, stopped) if store else {**summarize(log.records, stopped), **tests}
    parts.net.load(state.w)
    return Result(config, log.records, summary, final, directory, parts.client_table())


@contextmanager
def _store(parts: Parts, directory: Path | None, resume: bool, say: Callable[[str], None]) -> Iterator[RunStore | None]:
    """The run store in a directory; None where nothing is written."""
    if directory is None:
        yield None
        return
    config, registered = parts.config, parts.client_table()
    identity, device = parts.fingerprint(), parts.net.device
    with open_store(directory, config, registered, identity, device, resume, say, restart=True) as store:
        yield store


def _already_finished(
    parts: Parts,
    directory: Path,
    summary: dict[str, Any],
    callbacks: Sequence[Callback | RunCallback],
    say: Callable[[str], None],
) -> Result:
    """The result of a run that was finished before."""
    parts.net.module.load_state_dict(safetensors.torch.load_file(directory / MODEL))
    table = parts.client_table()
    summary = repair_finished(directory, parts.config, table, summary, say)
    run = read_run(directory)
    with open_callbacks(callbacks, RunStart(parts.config, directory, with_seconds(run.records, run.times), say)):
        pass  # a tracker may have missed some of its rounds
    summary = {**summary, **summarize(run.records, run.stopped)}
    final = Trained(parts.net.module, Inputs.of(parts.data))
    return Result(parts.config, run.records, summary, final, directory, table, already_finished=True)


def _repeat_warnings(say: Callable[[str], None], said: Sequence[str]) -> Callback:
    """Says the warnings about the filtering set that a record holds, except those that were said before."""

    def watch(record: Mapping[str, Any], state: State) -> None:
        for note in record["notes"]:
            if note.startswith(PREFIX) and note not in said:
                say(f"round {record['round']}: {note}")

    return watch


def _warn_if_all_refused(say: Callable[[str], None], names: NDArray[np.generic]) -> Callback:
    """Warns once when every update of a round is refused: often the model or the loss is wrong."""
    warned = False

    def watch(record: Mapping[str, Any], state: State) -> None:
        nonlocal warned
        if not warned and record["refused"] and any(note.startswith(ALL_REFUSED) for note in record["notes"]):
            warned = True
            k, reason = next(iter(record["refused"].items()))
            say(f"round {record['round']}: every update was refused; client {names[int(k)]}: {reason}")

    return watch
