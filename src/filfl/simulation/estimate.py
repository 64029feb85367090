"""How long runs will take: their numbers of training steps and inferences, times what one of each takes here."""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from filfl.config.config import Config
from filfl.core.server import START
from filfl.data import FederatedData
from filfl.evaluation import mean_loss
from filfl.filtering.schedule import Periodic
from filfl.simulation.build import Parts, make_parts
from filfl.simulation.executors.serial import LocalTraining, SerialClients
from filfl.system import num_cores, numerics, one_thread

STEPS = 3
"""How many training steps are timed."""
SAMPLES = 256
"""How many inferences are timed."""


@dataclass(frozen=True)
class Estimate:
    """The expected duration of runs, and what it was computed from."""

    seconds: float
    """Of all runs, with all cores of this machine, or one after the other on a GPU."""
    step: float
    """Seconds of one training step, on one core or on the GPU: the longest of all configs."""
    device: str
    """cpu or cuda."""


@dataclass(frozen=True)
class Work:
    """What a run computes: batches in local training, and samples on which a model is evaluated."""

    steps: float
    inferences: float


@dataclass(frozen=True)
class _Measured:
    data: FederatedData
    num_V: int
    num_test: int
    device: str
    step: float
    inference: float


def estimate(configs: Sequence[Config]) -> Estimate:
    """The expected duration of these runs. Configs with the same data, model and batches are measured once.

    Counted are local training, the rewards of sets of clients, and tests. What a selection asks clients for is not.
    """
    measured: dict[str, _Measured] = {}
    seconds = 0.0
    for config in configs:
        table = config.table()
        key = json.dumps([table[section] for section in ("data", "model", "training", "execution")], sort_keys=True)
        if key not in measured:
            measured[key] = _measure(config)
        found = measured[key]
        work = work_of(config, found.data, found.num_V, found.num_test)
        total = work.steps * found.step + work.inferences * found.inference
        seconds += total / num_cores() if found.device == "cpu" else total
    slowest = max(measured.values(), key=lambda each: each.step)
    return Estimate(seconds, slowest.step, slowest.device)


def work_of(config: Config, data: FederatedData, num_V: int, num_test: int) -> Work:
    """What a run with this config computes, if every set from which clients are selected has at least K clients."""
    options, training = config.filter, config.training
    per_epoch = float(np.mean(-(-data.num_train // training.batch)))
    per_client = training.steps or (training.epochs or 1) * per_epoch
    trained = judged = 0
    for considered in _filter_rounds(config, data.num_clients):
        trained += config.selection.k if considered is None else considered
        if considered is not None:
            sets = considered if options.surrogate else 2 * considered - 1
            # The honest gain filters once more on each half of V.
            judged += sets * (2 if options.honest_gain and not options.surrogate else 1)
    tests = -(-config.rounds // config.evaluate.every)
    return Work(trained * per_client, judged * num_V + tests * num_test)


def _filter_rounds(config: Config, num_clients: int) -> Iterator[int | None]:
    """For every round, how many clients a filtering considers; None in an ordinary round."""
    schedule, past = Periodic(config.filter.when, config.filter.period), START
    for t in range(1, config.rounds + 1):
        S_t = config.availability(t, num_clients, config.seed)
        if config.filter.method is None or not len(S_t) or not schedule(t, S_t, past):
            past = replace(past, previous=S_t)
            yield None
        else:
            past = replace(past, previous=S_t, filtered_at=t, seen=S_t)
            yield min(len(S_t), config.filter.cap or len(S_t))


def _measure(config: Config) -> _Measured:
    with one_thread(), numerics(config.execution.deterministic, config.execution.tf32):
        parts = make_parts(config, None, None, lambda text: None)
        samples = SerialClients(parts.data, parts.net, parts.loss, LocalTraining.of(config, None)).samples
        largest = int(np.argmax(parts.data.num_train))
        start = int(parts.data.offsets[largest])
        samples = samples.part(start, start + int(parts.data.num_train[largest]))
        timed = replace(config.training, epochs=None, steps=STEPS)
        training = replace(LocalTraining.of(config, parts.augment), options=timed)
        some = parts.test_set.part(0, SAMPLES)
        step = _seconds(lambda: training.update(1, largest, parts.net, parts.start.w, samples, parts.loss)) / STEPS
        inference = _seconds(lambda: mean_loss(parts.net, parts.start.w, some, parts.loss)) / len(some)
    return _Measured(parts.data, _num_V(parts), len(parts.test_set), parts.net.device.type, step, inference)


def _num_V(parts: Parts) -> int:
    """The samples on which a set of clients is judged."""
    judged_by = parts.config.filter.data
    sizes = np.diff(parts.data.offsets)
    if judged_by == "federated":
        return int(sizes.sum())
    return int(sizes.mean()) if judged_by == "variable" else len(parts.V)


def _seconds(compute: Callable[[], object]) -> float:
    """The seconds of the second call: the first one also allocates memory and starts the device."""
    compute()
    start = time.perf_counter()
    compute()
    return time.perf_counter() - start
