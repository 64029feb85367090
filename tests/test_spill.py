"""`execution.memory`: trained weights beyond a limit are kept in an unnamed temporary file."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest
import torch

import filfl
from filfl.algorithms.fedavg import FedAvg
from filfl.config.sections import Training
from filfl.errors import RunError
from filfl.evaluation import cross_entropy
from filfl.simulation.executors.serial import LocalTraining, SerialClients
from filfl.simulation.wrappers.spill import SpillingClients
from filfl.weights import FlatModel, Weights
from replay import replay

TRAINING = LocalTraining(1, FedAvg(), Training(epochs=1, batch=8, lr=0.1))


@pytest.fixture
def serial(blobs: filfl.FederatedData) -> tuple[SerialClients, FlatModel, Weights]:
    torch.manual_seed(0)
    model = FlatModel(torch.nn.Linear(4, 3), torch.device("cpu"))  # 15 weights, 60 bytes
    return SerialClients(blobs, model, cross_entropy, TRAINING), model, model.weights()


def temporary_files() -> int:
    """The number of unnamed files mapped into this process."""
    return Path("/proc/self/maps").read_text().count("(deleted)") if Path("/proc/self/maps").exists() else 0


@pytest.mark.parametrize("fit", [1, 2, 4])
def test_weights_in_a_file_equal_those_in_memory(serial: tuple[SerialClients, FlatModel, Weights], fit: int) -> None:
    clients, model, w = serial
    before = temporary_files()
    spilling = SpillingClients(clients, model.layout, 60 * fit)
    ids = [7, 2, 5, 0, 8]
    expected, got = clients.train(1, ids, w), spilling.train(1, ids, w)
    assert list(got) == ids
    for k in ids:
        assert torch.equal(got[k].weights.vector, expected[k].weights.vector)
        assert (got[k].train_loss, got[k].num_examples) == (expected[k].train_loss, expected[k].num_examples)
    rows = {got[k].weights.vector.untyped_storage().data_ptr() for k in ids}
    assert len(rows) == 1, "all rows share one storage"
    if before or temporary_files():
        assert temporary_files() == before + 1
    del got, expected
    assert temporary_files() == before, "the file is removed with its last tensor"


def test_weights_that_fit_stay_in_memory(serial: tuple[SerialClients, FlatModel, Weights]) -> None:
    clients, model, w = serial
    got = SpillingClients(clients, model.layout, 60 * 5).train(1, [7, 2, 5, 0, 8], w)
    assert all(update.weights.vector.dtype == torch.float32 for update in got.values())


@pytest.mark.parametrize("mode", ["serial", "vectorized"])
def test_a_memory_limit_does_not_change_a_run(small: dict[str, Any], mode: str) -> None:
    config = {**small, "execution.mode": mode}
    free, limit = filfl.simulate(config), {"execution.memory": 1e-6}
    if mode == "serial":
        assert filfl.simulate({**config, **limit}).records == free.records
    else:  # the clients are batched differently, so that sums round differently
        replay({**config, **limit}, free.records)


def test_a_full_disk_raises_with_advice(
    serial: tuple[SerialClients, FlatModel, Weights], monkeypatch: pytest.MonkeyPatch
) -> None:
    clients, model, w = serial

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(RunError, match=r"cannot reserve 0\.0 GB for the trained weights of 3 clients in .*TMPDIR"):
        SpillingClients(clients, model.layout, 60).train(1, range(3), w)
