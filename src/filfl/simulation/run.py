"""A whole federated run on one machine: `filfl.simulate`."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from filfl.clients import Job
from filfl.config import Config
from filfl.data import FederatedData
from filfl.data.filter_file import with_filter_file
from filfl.errors import ConfigError, DataError, PluginError, only_from_python
from filfl.evaluation import Loss, Metric, accuracy, cross_entropy, mean_loss, mean_squared_error, score
from filfl.experiment import Experiment, override
from filfl.filtering import FILTERS, Filter
from filfl.filtering.judges import JUDGES, LossOf
from filfl.filtering.reward import AverageReward
from filfl.rng import SETUP, stream, torch_seeded
from filfl.runs import Callback, finished, open_store, read_run, run_rounds
from filfl.runs.files import to_json
from filfl.runs.store import MODEL
from filfl.runs.summary import summarize
from filfl.selection import Selects
from filfl.selection.own import OwnSelection
from filfl.server import FilFL, State
from filfl.simulation.serial import SerialClients, samples_on
from filfl.weights import FlatModel, Weights

EXECUTORS = {"auto": SerialClients, "serial": SerialClients}


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
    data: FederatedData | None = None,
    model: Callable[[], nn.Module] | None = None,
    loss: Loss | None = None,
    metrics: Mapping[str, Metric] | None = None,
    filter: Filter | None = None,
    selection: Selects | None = None,
    callbacks: Sequence[Callback] = (),
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
    metrics: {name: (outputs, targets) -> number} on the test set; accuracy when unset and targets are classes.
    filter: (clients, reward, rng) -> `filfl.Filtering`, instead of the config's.
    selection: (pool, k, ask, rng) -> ids, instead of the config's.
    callbacks: functions (record, state) that are called after every round.
    out: a directory for the run store; nothing is written when unset. resume: go on with the run that is there
        (whose own loss, metrics, filter and selection, if any, must be the same: that cannot be checked).
    say: takes the sentences that a person should read, such as a refused checkpoint.
    """
    if data is not None and not isinstance(data, FederatedData):
        raise DataError(
            f"data must be FederatedData, as FederatedData.from_arrays(x, y, client_ids) makes it "
            f"(got {type(data).__name__})"
        )
    if resume and out is None:
        raise ConfigError("resume needs out: the directory of the run to go on with")
    config = _config(config, data, model, filter, selection)
    data = data.with_random_labels(config.data.noisy, config.seed) if data else config.data.load(config.seed)
    if config.filter.path is not None:
        data = with_filter_file(data, config.filter.path)
    config.check_against(data)
    device = pick_device(config.execution.device)
    with one_thread():
        net = _network(config, data, model, device)
        start = State(net.weights())
        loss = loss or (cross_entropy if data.classes else mean_squared_error)
        metrics = {"accuracy": accuracy} if metrics is None and data.classes else metrics or {}
        filter_data = data.with_filter_size(config.filter.size, config.seed)
        filter_set = samples_on(net, data, filter_data.filter_x, filter_data.filter_y)
        test_set = samples_on(net, data, data.test_x, data.test_y)

        def reward(trained: Mapping[int, Tensor], w_t: Weights, judged: LossOf | None) -> AverageReward:
            def loss_on_V(vector: Tensor) -> float:
                return mean_loss(net, Weights(vector, w_t.integers), filter_set, loss)

            return AverageReward(trained, judged or loss_on_V, w_t.vector if config.filter.empty == "global" else None)

        def test(w: Weights) -> dict[str, Any]:
            test_loss, scores = score(net, w, test_set, loss, metrics)
            return {"test_accuracy": scores.get("accuracy"), "test_loss": test_loss, "metrics": scores}

        first, _ = next(test_set.chunks())
        _fits(test, start.w, f"{first.dtype}".removeprefix("torch.") + f"{list(first.shape)}")
        fl = FilFL(
            seed=config.seed,
            num_clients=data.num_clients,
            clients=EXECUTORS[config.execution.mode](data, net, loss),
            layout=net.layout,
            availability=config.availability,
            filter=filter or FILTERS.get(config.filter.name),
            reward=reward,
            judge=JUDGES.get(config.filter.data),
            when=config.filter.when,
            h=config.filter.period,
            n=config.filter.cap,
            selection=selection or config.selection,
            K=config.selection.k,
            job=lambda t: _job(config, t),
            aggregation=config.aggregation,
        )
        directory = Path(out) if out is not None else None
        fingerprint = _fingerprint(config, data, net, start.w) if directory else ""
        if directory and resume and (summary := finished(directory, fingerprint)):
            net.module.load_state_dict(safetensors.torch.load_file(directory / MODEL))
            records = read_run(directory).records
            summary = {**summarize(records), **summary}
            return Result(config, records, summary, net.module, directory, already_finished=True)
        clients = data.describe()
        opened = (
            open_store(directory, config, clients, fingerprint, device, resume, say) if directory else nullcontext()
        )
        with opened as store:
            every = config.evaluate.every
            watchers = [_say_when_nobody_trains(say), *callbacks]
            state, records = run_rounds(fl, start, config.rounds, test, every, watchers, store)
            summary = store.finish(net.layout.unflatten(state.w)) if store else summarize(records)
        net.load(state.w)
        return Result(config, records, summary, net.module, directory)


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


def pick_device(name: str) -> torch.device:
    """The device of this name; "auto" is CUDA where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f'execution.device = "{name}" cannot be used here: {reason}') from None
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f'execution.device must be auto, cpu, cuda or cuda:N (got "{name}")')
    return device


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch compute with one thread, so that sums do not depend on the number of cores; then put it back."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _config(
    config: object,
    data: FederatedData | None,
    model: Callable[[], nn.Module] | None,
    filter: Filter | None,
    selection: Selects | None,
) -> Config:
    """The config of the run, in which what is given from Python stands as such."""
    own = {
        "data.name": "arrays" if data is not None else None,
        "model.name": "own" if model is not None else None,
        "filter.name": "own" if filter is not None else None,
        "selection.name": "own" if selection is not None else None,
    }
    changes = {key: name for key, name in own.items() if name}
    if isinstance(config, Config):
        made = Experiment(config.table()).config(changes)
    elif isinstance(config, Mapping) and all(isinstance(key, str) for key in config):
        made = Experiment(override({}, config)).config(changes)
    elif not isinstance(config, str | Path):
        raise ConfigError(f"config must be a Config, a table of keys or the path of a TOML file (got {config!r})")
    else:
        made = Experiment.load(config).config(changes)
    if made.filter.name == "own" and filter is None:
        raise only_from_python("filter.name", "own", "filter")
    if isinstance(made.selection, OwnSelection) and selection is None:
        raise only_from_python("selection.name", "own", "selection")
    return made


def _network(
    config: Config, data: FederatedData, model: Callable[[], nn.Module] | None, device: torch.device
) -> FlatModel:
    """The network with its initial weights w_1, which depend on the seed alone."""
    with torch_seeded(stream(config.seed, SETUP, "initial-weights"), device):
        if isinstance(model, nn.Module):
            raise PluginError("model must be a function that makes a new module: write model=lambda: nn.Linear(8, 3)")
        try:
            module = model() if model else config.model.build(data.sample_shape, data.classes)
        except (RuntimeError, MemoryError, TypeError, ValueError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise PluginError(f"the model cannot be made: {reason}") from error
        if not isinstance(module, nn.Module):
            raise PluginError(f"model must be a function that makes an nn.Module (got {type(module).__name__})")
        return FlatModel(module, device)


def _fits(test: Callable[[Weights], Mapping[str, Any]], w: Weights, kind: str) -> None:
    """Try the model on the test set once, so that a model that does not fit the data is said before any round."""
    try:
        test(w)
    except Exception as error:
        raise PluginError(
            f"the model, the loss or a metric does not fit the data (a batch of {kind}): "
            f"{type(error).__name__}: {error}"
        ) from error


def _job(config: Config, t: int) -> Job:
    training = config.training
    return Job(
        seed=config.seed,
        round=t,
        algorithm=config.algorithm,
        epochs=training.epochs,
        steps=training.steps,
        batch=training.batch,
        lr=training.lr_at(t),
        momentum=training.momentum,
        weight_decay=training.weight_decay,
    )


def _fingerprint(config: Config, data: FederatedData, net: FlatModel, start: Weights) -> str:
    """Says which run this is, as far as it can be told: functions of the user's own look all alike."""
    layout = [(e.name, e.shape, str(e.dtype)) for e in net.layout.entries]
    initial = hashlib.sha256(start.vector.cpu().numpy().tobytes()).hexdigest()
    text = to_json([config.table(), data.fingerprint(), layout, initial, net.device.type])
    return hashlib.sha256(text.encode()).hexdigest()
