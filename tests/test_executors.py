"""The fixed rule of `execution.mode = "auto"`."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from filfl import FederatedData
from filfl.algorithms.fedavg import FedAvg
from filfl.config.config import Config
from filfl.config.sections import Training
from filfl.evaluation import cross_entropy
from filfl.simulation.executors.open import LONG, SMALL, choose
from filfl.simulation.executors.serial import LocalTraining
from filfl.weights import FlatModel

TRAINING = LocalTraining(0, FedAvg(), Training(epochs=1, batch=8, lr=0.1))


def images() -> FederatedData:
    rng = np.random.default_rng(0)
    return FederatedData.from_arrays(rng.random((80, 1, 8, 8)), rng.integers(3, size=80), np.arange(80) % 4)


def dense(hidden: int, *others: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, hidden), nn.ReLU(), *others, nn.Linear(hidden, 3))


def convolution() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(72, 3))


@pytest.mark.parametrize(
    ("make", "rounds", "workers", "mode"),
    [
        (partial(dense, 8), LONG, 2, "vectorized"),
        (partial(dense, 8), 1, 1, "vectorized"),
        (partial(dense, SMALL // 60), LONG, 2, "processes"),
        (partial(dense, 8, nn.Dropout(0.5)), LONG, 2, "processes"),
        (convolution, LONG, 2, "processes"),
        (convolution, LONG, 1, "serial"),
        (convolution, LONG // 4 - 1, 2, "serial"),
    ],
)
def test_auto_depends_on_model_rounds_and_workers(make, rounds: int, workers: int, mode: str) -> None:
    table = {"data": {"name": "arrays"}, "model": {"name": "own"}, "rounds": rounds, "selection": {"k": 4}}
    net = FlatModel(make(), torch.device("cpu"))
    assert choose(Config.from_table(table), images(), net, cross_entropy, TRAINING, workers) == mode
