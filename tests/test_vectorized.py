"""The vectorized executor: many clients in one computation, each with its own batches in its own order."""

import ctypes
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

import filfl
from filfl import FederatedData
from filfl.algorithms.fedavg import FedAvg
from filfl.algorithms.fedprox import FedProx
from filfl.config.sections import Training
from filfl.core.clients import Failure, Update
from filfl.core.queries import GradientQuery, LossQuery
from filfl.evaluation import cross_entropy
from filfl.simulation.executors import batched
from filfl.simulation.executors.serial import LocalTraining, SerialClients
from filfl.simulation.executors.vectorized import VectorizedClients, why_not_batched
from filfl.weights import FlatModel
from replay import replay

CPU = torch.device("cpu")
TRAINING = LocalTraining(1, FedAvg(), Training(epochs=2, batch=4, lr=0.1))
T = 2
"""The round number of all trainings in this file."""


def ragged(sizes: list[int], features: int = 5) -> FederatedData:
    """Clients of these sizes, with classes that can be learned."""
    rng = np.random.default_rng(0)
    owners = np.repeat(np.arange(len(sizes)), sizes)
    x = rng.normal(size=(len(owners), features)).astype(np.float32)
    y = (x[:, 0] > 0).astype(int) + (x[:, 1] > 0)
    return FederatedData.from_arrays(x, y, owners, test=(x[:3], y[:3]), filtering=(x[:3], y[:3]), validation=0.2)


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))


class TiedAndFrozen(nn.Module):
    """A model with tied weights, a frozen layer, an unused parameter and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(5, 5)
        self.second = nn.Linear(5, 5, bias=False)
        self.second.weight = self.first.weight
        self.frozen = nn.Linear(5, 3).requires_grad_(False)
        self.head = nn.Linear(3, 3)
        self.unused = nn.Parameter(torch.ones(2))
        self.register_buffer("shift", torch.full((3,), 0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.frozen(self.second(self.first(x).tanh())) + self.shift)


def close(one: Update | Failure, other: Update | Failure) -> bool:
    assert isinstance(one, Update) and isinstance(other, Update)
    assert one.num_examples == other.num_examples
    assert one.train_loss == pytest.approx(other.train_loss, rel=1e-4)
    return torch.allclose(one.weights.vector, other.weights.vector, atol=1e-5)


def both(
    data: FederatedData, make: Callable[[], nn.Module], threads: int = 2, training: LocalTraining = TRAINING
) -> tuple:
    model = FlatModel(make(), CPU)
    serial = SerialClients(data, model, cross_entropy, training)
    return serial, VectorizedClients(data, model, cross_entropy, training, threads), model


@settings(max_examples=settings.default.max_examples // 8)
@given(
    st.lists(st.integers(2, 15), min_size=1, max_size=12),
    st.integers(1, 9),
    st.sampled_from([{"epochs": 2}, {"epochs": None, "steps": 5}]),
    st.sampled_from([FedAvg(), FedProx(mu=0.5)]),
    st.sampled_from([0.0, 0.9]),
    st.sampled_from([0.0, 0.1]),
    st.sampled_from([mlp, TiedAndFrozen]),
)
def test_every_client_trains_as_in_the_serial_executor(
    sizes, batch, length, algorithm, momentum, weight_decay, make
) -> None:
    data = ragged(sizes)
    options = Training(batch=batch, lr=0.1, momentum=momentum, weight_decay=weight_decay, **length)
    serial, vectorized, model = both(data, make, training=LocalTraining(1, algorithm, options))
    ids = list(range(len(sizes)))[::-1]
    w = model.weights()
    alone, together = serial.train(T, ids, w), vectorized.train(T, ids, w)
    vectorized.close()
    assert list(together) == ids
    assert all(close(alone[k], together[k]) for k in ids)


def test_a_step_by_hand() -> None:
    """w = (0), one feature: the gradient of (w x - y)^2 over a batch {(1, 2), (3, 0)} is mean of -4 and 0 = -2."""
    x, y = np.array([[1.0], [3.0], [2.0]]), np.array([[2.0], [0.0], [1.0]])
    data = FederatedData.from_arrays(x, y, [0, 0, 1], test=(x, y), filtering=(x, y), validation=0.0)
    model = FlatModel(nn.Linear(1, 1, bias=False), CPU)
    model.vector.zero_()
    training = LocalTraining(1, FedAvg(), Training(epochs=1, batch=2, lr=0.5))
    updates = VectorizedClients(data, model, functional.mse_loss, training, threads=1).train(T, [0, 1], model.weights())
    # Client 1 has one sample: the padding of its batch counts nothing. Its gradient is -2 * 2 * 1 = -4.
    assert [float(updates[k].weights.vector) for k in (0, 1)] == [1.0, 2.0]
    assert [updates[k].train_loss for k in (0, 1)] == [2.0, 1.0]


@pytest.mark.parametrize("make", [mlp, TiedAndFrozen])
def test_losses_and_gradients_equal_those_of_the_serial_executor(make: Callable[[], nn.Module]) -> None:
    data = ragged([3, 250, 17, 1, 9, 40, 30, 20, 10, 110])
    serial, vectorized, model = both(data, make)
    ids, w = [4, 1, 3, 0, 9, 8, 7, 6, 5], model.weights()
    for split in ("train", "validation"):
        alone, together = serial.query(LossQuery(split), ids, w), vectorized.query(LossQuery(split), ids, w)
        assert list(together) == ids
        assert together == pytest.approx(alone, rel=1e-5)
    alone, together = serial.query(GradientQuery(), ids, w), vectorized.query(GradientQuery(), ids, w)
    vectorized.close()
    assert list(together) == ids
    assert all(torch.allclose(alone[k], together[k], atol=1e-6) for k in ids)


@pytest.mark.parametrize("make", [mlp, TiedAndFrozen])
def test_tracing_and_threads_change_no_bit(make: Callable[[], nn.Module], monkeypatch: pytest.MonkeyPatch) -> None:
    data = ragged([20, 31, 8, 9, 10, 5, 40, 3, 12, 30, 22])
    results = []
    for trace_after, threads in ((10**9, 1), (0, 1), (0, 3), (5, 2)):
        monkeypatch.setattr(batched, "TRACE_AFTER", trace_after)
        options = Training(epochs=2, batch=4, lr=0.1, momentum=0.5, weight_decay=0.01)
        _, vectorized, model = both(data, make, threads, LocalTraining(1, FedProx(mu=0.1), options))
        results.append(vectorized.train(T, range(11), model.weights()))
        vectorized.close()
    for other in results[1:]:
        for k, update in results[0].items():
            assert torch.equal(update.weights.vector, other[k].weights.vector)
            assert update.train_loss == other[k].train_loss


def test_uint8_samples_are_scaled_in_the_batch() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.integers(256, size=(60, 5), dtype=np.uint8), rng.integers(3, size=60)
    data = FederatedData.from_arrays(x, y, np.arange(60) % 7, scale=1 / 128, shift=-1.0)
    serial, vectorized, model = both(data, mlp)
    w = model.weights()
    alone, together = serial.train(T, range(7), w), vectorized.train(T, range(7), w)
    vectorized.close()
    assert all(close(alone[k], together[k]) for k in range(7))


def test_a_failing_client_does_not_affect_others() -> None:
    data = ragged([6, 6, 6])
    bad = data.y.copy()
    bad[data.offsets[1]] = 7  # an invalid class: cross-entropy raises for the whole batch
    serial, vectorized, model = both(replace(data, y=bad), mlp)
    w = model.weights()
    alone, together = serial.train(T, range(3), w), vectorized.train(T, range(3), w)
    vectorized.close()
    assert isinstance(together[1], Failure) and "raised" in together[1].reason
    assert all(close(alone[k], together[k]) for k in (0, 2))


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs = self.dense(x)
        return outputs * 2 if outputs.sum() > 0 else outputs


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(1, 3, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lstm(x.unsqueeze(-1))[0][:, -1]


def weighted(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """A loss that is not a mean over samples: classes have different weights within the batch."""
    return functional.cross_entropy(outputs, targets, weight=torch.tensor([1.0, 5.0, 9.0]))


CANNOT = {
    "BatchNorm computes its statistics": (lambda: nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3)), cross_entropy),
    "it draws random numbers": (lambda: nn.Sequential(nn.Linear(5, 3), nn.Dropout(0.5)), cross_entropy),
    "its control flow depends on the data": (Branching, cross_entropy),
    "torch has no batched form of aten::mkldnn_rnn_layer": (Recurrent, cross_entropy),
    "training gives other weights": (mlp, weighted),
}


@pytest.mark.parametrize("reason", CANNOT)
def test_models_that_cannot_be_batched_fall_back_to_serial_with_the_reason(reason: str) -> None:
    make, loss = CANNOT[reason]
    data = ragged([20, 30, 40, 50])
    messages: list[str] = []
    config = {"rounds": 2, "selection.k": 2, "training.batch": 5, "filter.name": "none"}

    def run(mode: str) -> filfl.Result:
        table = {**config, "execution.mode": mode}
        return filfl.simulate(table, data=data, model=make, loss=loss, say=messages.append)

    serial, vectorized = run("serial"), run("vectorized")
    assert [reason in text for text in messages] == [True]
    assert messages[0].startswith('execution.mode = "vectorized" is not available (')
    assert serial.records == vectorized.records


def test_models_that_can_be_batched() -> None:
    data = ragged([20, 3])
    for make in (
        mlp,
        TiedAndFrozen,
        lambda: nn.Sequential(nn.Linear(5, 4), nn.LayerNorm(4), nn.GELU(), nn.Linear(4, 3)),
    ):
        model = FlatModel(make(), CPU)
        before = model.weights()
        assert why_not_batched(data, model, cross_entropy, TRAINING) is None
        assert torch.equal(model.weights().vector, before.vector), "the trial must not change the weights"


@pytest.mark.parametrize("selection", ["random", "power-of-choice", "divfl"])
@pytest.mark.parametrize("filter", ["none", "dgf", "rgf"])
def test_decisions_equal_those_of_a_serial_run_up_to_ties(selection: str, filter: str) -> None:
    config = {
        "rounds": 6,
        "data.clients": 12,
        "filter.name": filter,
        "filter.period": 2,
        "selection.name": selection,
        "selection.k": 3,
    }
    serial = filfl.simulate({**config, "execution.mode": "serial"})
    replay({**config, "execution.mode": "vectorized"}, serial.records)


MANY_RUNS = """
import filfl, filfl.simulation.executors.open as executors
if {keep}:
    executors.return_freed_memory = lambda: None
config = {{"data.name": "synthetic", "data.features": 3000, "data.clients": 30, "model.name": "mlp", "rounds": 10}}
for run in range(5):
    filfl.simulate({{**config, "filter.name": "dgf", "filter.period": 2}}, progress=False, say=lambda text: None)
print(open("/proc/self/status").read().split("VmRSS:")[1].split()[0])
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="only glibc keeps freed memory by request")
def test_a_process_returns_the_memory_that_its_runs_have_freed() -> None:
    scripts = [MANY_RUNS.format(keep=keep) for keep in (False, True)]
    runs = [subprocess.run([sys.executable, "-c", s], capture_output=True, text=True, check=True) for s in scripts]
    returned, kept = (int(done.stdout) for done in runs)
    assert returned < 0.85 * kept
