"""Clients in worker processes: results equal the serial executor bit for bit, and no process is left running."""

import gc
import os
import signal
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import filfl
from filfl.algorithms.fedavg import FedAvg
from filfl.algorithms.fedprox import FedProx
from filfl.config.sections import Training
from filfl.core.clients import Failure, Update
from filfl.core.queries import GradientQuery, LossQuery
from filfl.errors import RunError
from filfl.evaluation import Loss, cross_entropy
from filfl.simulation.build import network
from filfl.simulation.executors.pool import CannotRun
from filfl.simulation.executors.processes import ProcessClients
from filfl.simulation.executors.serial import LocalTraining, SerialClients
from filfl.simulation.executors.shared import Segment
from filfl.simulation.executors.worker import apply_torch_settings, torch_settings
from filfl.system import one_thread
from filfl.weights import FlatModel, Weights

pytestmark = pytest.mark.skipif(not Path("/proc/self").exists(), reason="processes are looked up in /proc")

PLAIN = LocalTraining(3, FedAvg(), Training(epochs=2, batch=4, lr=0.1))


class RaisesOnWhite(nn.Module):
    """A small CNN with BatchNorm and Dropout that raises on the data of client 4."""

    def __init__(self) -> None:
        super().__init__()
        layers = [nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Dropout(0.3), nn.Flatten(), nn.Linear(48, 3)]
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        if float(x.min()) == 1.0:
            raise ValueError("all white")
        result: Tensor = self.layers(x)
        return result


class KillsWorker(nn.Module):
    """Kills the worker that trains it: for client 2 once, for client 5 every time."""

    def __init__(self, once: Path, parent: int) -> None:
        super().__init__()
        self.layer = nn.Linear(33, 3)
        self.once, self.parent = once, parent

    def forward(self, x: Tensor) -> Tensor:
        client = int(x[0, 0])
        if self.training and os.getpid() != self.parent:
            if client == 2 and not self.once.exists():
                self.once.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            if client == 5:
                os.kill(os.getpid(), signal.SIGKILL)
        result: Tensor = self.layer(x)
        return result


@pytest.fixture(scope="module", autouse=True)
def use_one_thread() -> Iterator[None]:
    with one_thread():
        yield


def made(make: Callable[[], nn.Module]) -> partial[FlatModel]:
    return partial(network, make, 0, torch.device("cpu"))


def opened(
    data: filfl.FederatedData,
    make: Callable[[], nn.Module],
    workers: int,
    loss: Loss = cross_entropy,
    training: LocalTraining = PLAIN,
) -> Any:
    return closing(ProcessClients(data, made(make)(), loss, training, made(make), workers))


def federated(x: np.ndarray, sizes: list[int]) -> filfl.FederatedData:
    y = np.random.default_rng(1).integers(3, size=len(x))
    owners = np.repeat(np.arange(len(sizes)), sizes)
    return filfl.FederatedData.from_arrays(x, y, owners, test=(x[:2], y[:2]), filtering=0.0, validation=0.2)


@pytest.fixture(scope="module")
def images() -> filfl.FederatedData:
    """Clients of very different sizes; client 4 has only white images."""
    sizes = [12, 3, 37, 1, 6, 20, 9]
    x = np.random.default_rng(0).integers(200, size=(sum(sizes), 1, 6, 6)).astype(np.uint8)
    x[np.repeat(np.arange(7), sizes) == 4] = 255
    return federated(x, sizes)


@pytest.fixture(scope="module")
def numbers() -> filfl.FederatedData:
    """33 floats per sample, so that the data of clients is not aligned in memory; feature 0 is the client id."""
    sizes = [130, 7, 8, 31, 5, 4]
    x = np.random.default_rng(0).normal(size=(sum(sizes), 33))
    x[:, 0] = np.repeat(np.arange(6), sizes)
    return federated(x, sizes)


@pytest.fixture(scope="module")
def both_executors(images: filfl.FederatedData) -> Iterator[tuple[SerialClients, ProcessClients, Weights]]:
    """The same clients in the serial executor and in three workers, and initial weights."""
    net = made(RaisesOnWhite)()
    with opened(images, RaisesOnWhite, 3) as clients:
        yield SerialClients(images, net, cross_entropy, PLAIN), clients, net.weights()


def workers_of(pid: int) -> set[int]:
    """The running worker processes of a process."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            if int(parent) == pid and state != "Z" and b"executors.worker" in (folder / "cmdline").read_bytes():
                found.add(int(folder.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def until(condition: Callable[[], bool]) -> bool:
    """Wait until a condition is true; returns False after 120 s."""
    deadline = time.monotonic() + 120
    while not (holds := condition()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return holds


def alive(pids: set[int]) -> set[int]:
    def living(pid: int) -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except (FileNotFoundError, ProcessLookupError):
            return False

    return {pid for pid in pids if living(pid)}


def shared_memory() -> int:
    """The number of shared segments mapped into this process."""
    return Path("/proc/self/maps").read_text().count("memfd:filfl")


def assert_same(ours: dict[int, Update | Failure], theirs: dict[int, Update | Failure]) -> None:
    assert list(ours) == list(theirs)
    for k, expected in ours.items():
        got = theirs[k]
        if isinstance(expected, Failure):
            assert got == expected
            continue
        assert isinstance(got, Update) and isinstance(got.weights, Weights) and isinstance(expected.weights, Weights)
        assert torch.equal(got.weights.vector, expected.weights.vector)
        assert torch.equal(got.weights.integers, expected.weights.integers)
        assert (got.num_examples, got.train_loss) == (expected.num_examples, expected.train_loss)


OTHER = Training(steps=5, batch=8, lr=0.05, momentum=0.9, weight_decay=0.01)


@pytest.mark.parametrize(("t", "training"), [(1, PLAIN), (2, LocalTraining(3, FedProx(mu=0.1), OTHER))])
def test_training_equals_the_serial_executor_bit_for_bit(
    images: filfl.FederatedData, t: int, training: LocalTraining
) -> None:
    net = made(RaisesOnWhite)()
    serial, w = SerialClients(images, net, cross_entropy, training), net.weights()
    ids = [6, 0, 4, 2, 1, 3, 5]
    with opened(images, RaisesOnWhite, 3, training=training) as processes:
        expected, got = serial.train(t, ids, w), processes.train(t, ids, w)
        assert_same(expected, got)
        assert got[4] == Failure("training raised ValueError: all white")
        assert isinstance(got[2], Update) and isinstance(got[2].weights, Weights)
        assert got[2].weights.integers.tolist() == [16 if training is PLAIN else 5], "BatchNorm counts its batches"
        # A second call with other weights and fewer clients does not depend on the first.
        other = expected[0].weights
        assert_same(serial.train(t, [5, 1], other), processes.train(t, [5, 1], other))


def test_losses_and_gradients_equal_the_serial_ones(
    both_executors: tuple[SerialClients, ProcessClients, Weights],
) -> None:
    serial, processes, w = both_executors
    ids = [5, 4, 0, 3]
    for split in ("train", "validation"):
        assert (got := processes.query(LossQuery(split), ids, w)) == serial.query(LossQuery(split), ids, w)
        assert list(got) == ids
    expected, gradients = serial.query(GradientQuery(), ids, w), processes.query(GradientQuery(), ids, w)
    assert gradients[4] == expected[4] == Failure("computing the gradient raised ValueError: all white")
    assert all(torch.equal(gradients[k], expected[k]) for k in ids if k != 4) and list(gradients) == ids
    assert processes.num_examples(ids).tolist() == serial.num_examples(ids).tolist()


def test_rows_stay_valid_while_they_are_in_use(both_executors: tuple[SerialClients, ProcessClients, Weights]) -> None:
    _, processes, w = both_executors
    first = processes.train(1, [0, 1], w)
    kept = first[1].weights.vector[5:9]
    copy = kept.clone()
    del first
    second = processes.train(1, [0, 1], Weights(w.vector + 1, w.integers))
    assert torch.equal(kept, copy) and not torch.equal(second[1].weights.vector[5:9], copy)
    memory = processes._stack
    del second
    processes.train(1, [0, 1], w)
    assert processes._stack is memory, "memory without references is used again"
    assert len(processes.train(1, range(7), w)) == 7, "more clients get more memory"


def test_a_worker_that_dies_is_replaced(numbers: filfl.FederatedData, tmp_path: Path) -> None:
    make = partial(KillsWorker, tmp_path / "once", os.getpid())
    net = made(make)()
    serial, w = SerialClients(numbers, net, cross_entropy, PLAIN), net.weights()
    gc.collect()  # objects of other tests
    mine, memory = workers_of(os.getpid()), shared_memory()
    with opened(numbers, make, 2) as clients:
        before = workers_of(os.getpid())
        expected, got = serial.train(1, range(6), w), clients.train(1, range(6), w)
        assert (tmp_path / "once").exists(), "client 2 must kill a worker"
        died = "the worker process died twice (exit code -9; -9 often means that the machine ran out of memory)"
        assert_same({**expected, 5: Failure(died)}, got)
        idle = next(iter(workers_of(os.getpid()) - before))
        os.kill(idle, signal.SIGKILL)
        assert until(lambda: idle not in workers_of(os.getpid()))
        assert clients.query(LossQuery(), range(6), w) == serial.query(LossQuery(), range(6), w)
        gradients = clients.query(GradientQuery(), range(6), w)
        assert all(torch.equal(gradients[k], g) for k, g in serial.query(GradientQuery(), range(6), w).items())
    assert workers_of(os.getpid()) == mine
    del clients, got, gradients
    gc.collect()
    assert shared_memory() == memory


class DiesWhenReplaced(nn.Linear):
    """Kills the worker that trains it, and its replacement while that starts."""

    def __init__(self, started: Path, parent: int) -> None:
        super().__init__(4, 3)
        self.started, self.parent = started, parent
        if os.getpid() != parent:
            if started.exists():
                os._exit(7)
            started.touch()

    def forward(self, x: Tensor) -> Tensor:
        if os.getpid() != self.parent and self.training:
            os._exit(8)
        return super().forward(x)


def test_a_replacement_that_dies_while_it_starts_ends_the_run_with_the_way_to_resume(
    blobs: filfl.FederatedData, tmp_path: Path
) -> None:
    make = partial(DiesWhenReplaced, tmp_path / "started", os.getpid())
    with opened(blobs, make, 1) as clients, pytest.raises(RunError, match=r"exit code 7.* run again with --resume"):
        clients.train(1, range(3), made(make)().weights())


def test_a_run_equals_the_serial_run_and_resumes_with_more_workers(small: dict[str, Any], tmp_path: Path) -> None:
    def stop(record: Any, state: object) -> None:
        if record["round"] == 2:
            raise KeyboardInterrupt

    before = workers_of(os.getpid())
    config = {**small, "selection.name": "power-of-choice", "data.noisy": 0.2}
    filfl.simulate({**config, "execution.mode": "serial"}, out=tmp_path / "serial")
    config["execution.mode"] = "processes"
    with pytest.raises(KeyboardInterrupt):
        filfl.simulate({**config, "execution.workers": 1}, out=tmp_path / "run", callbacks=[stop])
    assert workers_of(os.getpid()) == before
    messages: list[str] = []
    filfl.simulate({**config, "execution.workers": 2}, out=tmp_path / "run", resume=True, say=messages.append)
    assert not messages
    for name in ("rounds.jsonl", "model.safetensors"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "serial" / name).read_bytes()
    done = filfl.simulate({**config, "execution.workers": 3}, out=tmp_path / "run", resume=True)
    assert done.already_finished


def test_runs_that_workers_cannot_do_fall_back_to_serial_with_the_reason(
    small: dict[str, Any], blobs: filfl.FederatedData
) -> None:
    lock = threading.Lock()

    def locked(outputs: Tensor, targets: Tensor) -> Tensor:
        with lock:
            return cross_entropy(outputs, targets)

    config = {"rounds": 1, "selection.k": 2, "execution.mode": "processes", "execution.workers": 1}
    config |= {"filter.name": "none"}
    messages: list[str] = []
    result = filfl.simulate(config, blobs, loss=locked, say=messages.append)
    assert messages == [
        'execution.mode = "processes" is not available (the model, loss or algorithm cannot be sent to another process '
        "(TypeError: cannot pickle '_thread.lock' object)); falling back to serial"
    ]
    assert result.records[0]["refused"] == {}

    net = made(lambda: nn.Linear(4, 3))()
    net.device = torch.device("cuda")
    with pytest.raises(CannotRun, match="compute on the CPU, but this run is on cuda"):
        ProcessClients(blobs, net, cross_entropy, PLAIN, made(lambda: nn.Linear(4, 3)), 1)


def test_a_model_that_workers_cannot_import_is_trained_serially(blobs: filfl.FederatedData) -> None:
    module = types.ModuleType("nowhere_on_disk")
    exec("from torch import nn\ndef make(): return nn.Linear(4, 3)", module.__dict__)
    sys.modules[module.__name__] = module
    config = {"rounds": 1, "selection.k": 2, "execution.mode": "processes", "execution.workers": 1}
    config |= {"filter.name": "none"}
    messages: list[str] = []
    before = workers_of(os.getpid())
    try:
        result = filfl.simulate(config, blobs, model=module.make, say=messages.append)
    finally:
        del sys.modules[module.__name__]
    assert (
        len(messages) == 1
        and "cannot build the model: ModuleNotFoundError: No module named 'nowhere_on_disk'" in messages[0]
    )
    assert result.records[0]["refused"] == {} and workers_of(os.getpid()) == before


SCRIPT = """
import os, pathlib, time
import numpy, torch, filfl

print("the script runs")
x = numpy.random.default_rng(0).normal(size=(120, 4))
y = numpy.arange(120) % 3
data = filfl.FederatedData.from_arrays(x, y, numpy.arange(120) % 6, filtering=(x[:30], y[:30]))
script = os.getpid()

class Own(torch.nn.Linear):
    def forward(self, x):
        if pathlib.Path("hang").exists() and os.getpid() != script:
            pathlib.Path("hangs").touch()
            time.sleep(3600)
        return super().forward(x)

def run(mode):
    config = {"rounds": 2, "selection.k": 2, "execution.mode": mode, "execution.workers": 1}
    return filfl.simulate(config, data, model=lambda: Own(4, 3), loss=lambda o, y: torch.nn.functional.nll_loss(o, y))

assert run("serial").records == run("processes").records
print("equal records")
pathlib.Path("hang").touch()
run("processes")
"""


def test_a_script_needs_no_main_guard_and_its_workers_end_when_it_is_killed(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    with (tmp_path / "output").open("w") as output:
        process = subprocess.Popen([sys.executable, "-u", "script.py"], cwd=tmp_path, stdout=output, stderr=output)
        try:
            assert until(lambda: (tmp_path / "hangs").exists() or process.poll() is not None)
            workers = workers_of(process.pid)
        finally:
            process.kill()
            process.wait()
    assert (tmp_path / "output").read_text().splitlines() == ["the script runs", "equal records"]
    assert len(workers) == 1
    assert until(lambda: not alive(workers)), "a worker must end with its parent even during training"


def test_ctrl_c_ends_all_workers(tmp_path: Path, environment: dict[str, str]) -> None:
    arguments = [sys.executable, "-m", "filfl.cli", "run", "demo", "--out", "out", "--set", "rounds=100000"]
    arguments += ["--set", "execution.mode=processes", "--set", "execution.workers=2"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    process = subprocess.Popen(arguments, cwd=tmp_path, env=environment, start_new_session=True, **pipes)
    records = tmp_path / "out" / "rounds.jsonl"
    try:
        assert until(lambda: records.exists() and records.stat().st_size > 0)
        workers = workers_of(process.pid)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal sends it, to the command and its workers
        output, _ = process.communicate(timeout=60)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    assert process.returncode == 130 and "Traceback" not in output, output
    assert len(workers) == 2 and not alive(workers)


def test_torch_settings_are_applied() -> None:
    default = torch_settings()
    changed = {"dtype": "float64", "precision": "medium", "deterministic": 1, "flush": True}
    try:
        apply_torch_settings(changed)
        assert torch_settings() == changed and torch.tensor([1e-310]).mul(1) == 0
    finally:
        apply_torch_settings(default)
    assert (
        torch_settings() == default == {"dtype": "float32", "precision": "highest", "deterministic": 0, "flush": False}
    )


def test_shared_segments_have_the_given_layout_and_know_if_they_are_in_use() -> None:
    specs = [([3, 5], "uint8"), ([0], "int64"), ([], "float64"), ([2, 2], "bfloat16")]
    segment = Segment.make(specs)
    assert not segment.lent
    tensors = segment.tensors()
    assert [(list(t.shape), t.dtype) for t in tensors] == [
        ([3, 5], torch.uint8),
        ([0], torch.int64),
        ([], torch.float64),
        ([2, 2], torch.bfloat16),
    ]
    for i, tensor in enumerate(tensors):
        assert tensor.numel() == 0 or tensor.data_ptr() % 64 == 0
        tensor.fill_(i + 1)
    again = Segment(os.dup(segment.fd), specs).tensors()
    assert [t.double().sum().item() for t in again] == [15.0, 0.0, 3.0, 16.0], "a second mapping has the same values"
    part = tensors[0][1:, 2]
    del tensors, tensor
    assert segment.lent
    del part
    assert not segment.lent
