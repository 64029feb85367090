"""A whole federated run on one machine: `filfl.simulate`."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import nn

from filfl.config import Config
from filfl.data import Dataset, FederatedData
from filfl.data.filter_file import with_filter_file
from filfl.data.ridge import LeastSquares, Ridge, least_squares
from filfl.errors import ConfigError, DataError
from filfl.evaluation import Loss, Metric, accuracy, by_client, cross_entropy, mean_squared_error, score
from filfl.filtering import Filter, FilterFunction
from filfl.models import Model
from filfl.models.linear import Linear
from filfl.runs import (
    Beginning,
    Callback,
    Follows,
    finished,
    following,
    open_store,
    read_run,
    run_rounds,
    with_seconds,
)
from filfl.runs.files import to_json
from filfl.runs.registered import Registered
from filfl.runs.store import CLIENTS, MODEL, TIMES, read_times
from filfl.runs.summary import summarize
from filfl.selection import Selection, Selects
from filfl.server import State
from filfl.simulation.assembly import open_server
from filfl.simulation.serial import samples_on
from filfl.simulation.setup import network, one_thread, pick_device, try_once
from filfl.weights import FlatModel, Weights


@dataclass(frozen=True)
class Result:
    """What came out of a run."""

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
    callbacks: Sequence[Callback | Follows] = (),
    *,
    out: str | Path | None = None,
    resume: bool = False,
    say: Callable[[str], None] = print,
) -> Result:
    """Run federated learning with client filtering on this machine.

    config: a `Config`, a table such as {"rounds": 20, "filter.name": "rgf"}, or a TOML file.
    data: your own `FederatedData` instead of the config's.
    model: a function that makes a new network, instead of the config's.
    loss: (outputs, targets) -> mean loss over the batch; when unset, cross-entropy, or the mean squared error where the
        targets are numbers.
    metrics: {name: (outputs, targets) -> number} on the test set; when unset and targets are classes, accuracy, and
        where it is known whose each test sample is, the mean over clients and over the worst tenth of them.
    filter: (clients, reward, rng) -> `filfl.Filtering`, instead of the config's.
    selection: (pool, k, ask, rng) -> ids, instead of the config's.
    callbacks: functions (record, state) that are called after every round, with `seconds` by phase in the record; and
        trackers, such as `filfl.trackers.TensorBoard("logs")`.
    out: a directory for the run store; nothing is written when unset. resume: go on with the run that is there
        (whose own loss, metrics, filter and selection, if any, must be the same: that cannot be checked).
    say: takes the sentences that a person should read, such as a refused checkpoint.
    """
    if resume and out is None:
        raise ConfigError("resume needs out: the directory of the run to go on with")
    config = Config.read(config).with_own(data=data, model=model, filter=filter, selection=selection)
    config.require_objects()
    data = config.data.load(config.seed)
    if config.filter.path is not None:
        data = with_filter_file(data, config.filter.path)
    config.check_against(data)
    device = pick_device(config.execution.device)
    with one_thread():
        build = partial(network, partial(config.model.build, data.sample_shape, data.classes), config.seed, device)
        net = build()
        start = State(net.weights())
        problem = _known_problem(config, data, say) if loss is None else None
        loss = loss or (cross_entropy if data.classes else mean_squared_error)
        if metrics is None:
            metrics = {"accuracy": accuracy, **by_client(data.test_clients)} if data.classes else {}
        filter_data = data.with_filter_size(config.filter.size, config.seed)
        filter_set = samples_on(net, data, filter_data.filter_x, filter_data.filter_y).aligned()
        test_set = samples_on(net, data, data.test_x, data.test_y).aligned()

        def test(w: Weights) -> dict[str, Any]:
            test_loss, scores = score(net, w, test_set, loss, metrics)
            if problem:
                scores["distance"] = problem.distance(w.vector.cpu())
            return {"test_accuracy": scores.get("accuracy"), "test_loss": test_loss, "metrics": scores}

        first, _ = next(test_set.chunks())
        try_once(test, start.w, f"{first.dtype}".removeprefix("torch.") + f"{list(first.shape)}")
        directory = Path(out) if out is not None else None
        fingerprint = _fingerprint(config, data, net, start.w) if directory else ""
        if directory and resume and (summary := finished(directory, fingerprint)):
            net.module.load_state_dict(safetensors.torch.load_file(directory / MODEL))
            Registered.of(data, config).repair(directory / CLIENTS)
            run = read_run(directory)
            with following(callbacks, Beginning(config, directory, with_seconds(run.records, run.times), say)):
                pass  # a tracker may have missed some of its rounds
            summary = {**summarize(run.records), **summary}
            return Result(config, run.records, summary, net.module, directory, already_finished=True)
        opened = (
            open_store(directory, config, Registered.of(data, config), fingerprint, device, resume, say)
            if directory
            else nullcontext()
        )
        server = open_server(
            config,
            data,
            net,
            build,
            loss,
            filter_set,
            objective=(lambda w: problem.excess(w.cpu())) if problem else None,
            say=say,
        )
        with opened as store, server as fl:
            every = config.evaluate.every
            before = with_seconds(store.records, read_times(store.directory / TIMES)) if store else []
            with following(
                [_say_when_nobody_trains(say), *callbacks], Beginning(config, directory, before, say)
            ) as watchers:
                state, records = run_rounds(fl, start, config.rounds, test, every, watchers, store)
            summary = store.finish(net.layout.unflatten(state.w)) if store else summarize(records)
        net.load(state.w)
        return Result(config, records, summary, net.module, directory)


def _known_problem(config: Config, data: FederatedData, say: Callable[[str], None]) -> LeastSquares | None:
    """The problem that this run solves, where its optimum is known."""
    if not isinstance(config.data, Ridge) or not isinstance(config.model, Linear):
        return None
    try:
        return least_squares(data, config.training.weight_decay)
    except DataError as error:
        say(f"the distance to the optimum is not measured: {error}")
        return None


def _say_when_nobody_trains(say: Callable[[str], None]) -> Callback:
    """Tells once when every update of a round is refused: often something is wrong with the model or the loss."""
    told = False

    def watch(record: Mapping[str, Any], state: State) -> None:
        nonlocal told
        asked = set(map(str, record["considered"] or record["selected"]))
        if not told and asked and asked <= record["refused"].keys():
            told = True
            k, reason = next(iter(record["refused"].items()))
            say(f"round {record['round']}: every update was refused; client {k}: {reason}")

    return watch


def _fingerprint(config: Config, data: FederatedData, net: FlatModel, start: Weights) -> str:
    """Says which run this is, as far as it can be told: functions of the user's own look all alike."""
    layout = [(e.name, e.shape, str(e.dtype)) for e in net.layout.entries]
    initial = hashlib.sha256(start.vector.cpu().numpy().tobytes()).hexdigest()
    text = to_json([config.identity(), data.fingerprint(), layout, initial, net.device.type])
    return hashlib.sha256(text.encode()).hexdigest()
