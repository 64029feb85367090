"""The training workloads: model, clients and data. They need only NumPy, so that they work in every environment.

All contenders get the same data, `samples(workload, k)` of client k, and the same initial weights, `initial`.
"""

import math
import os
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

SEED = 0


@dataclass(frozen=True)
class Workload:
    """Local SGD on K of N clients per round, without evaluation."""

    model: str
    """mlp: 784-64-10. cnn: LEAF's, 32 and 64 channels, 2,048 hidden, 62 classes."""
    N: int
    K: int
    num_samples: int
    """Samples of each client."""
    epochs: int
    batch: int
    lr: float

    @property
    def shape(self) -> tuple[int, ...]:
        return (784,) if self.model == "mlp" else (1, 28, 28)

    @property
    def classes(self) -> int:
        return 10 if self.model == "mlp" else 62

    @property
    def threads(self) -> int:
        """For contenders that use threads: an operation of the MLP is too small to split."""
        return 1 if self.model == "mlp" else len(os.sched_getaffinity(0))

    @property
    def steps(self) -> int:
        """Steps of SGD in a round, over all its clients; the last batch of an epoch may be smaller."""
        return self.K * self.epochs * -(-self.num_samples // self.batch)

    @property
    def seen(self) -> int:
        """Samples that the model processes in a round."""
        return self.K * self.epochs * self.num_samples


WORKLOADS = {
    "W1": Workload("mlp", N=100, K=10, num_samples=50, epochs=2, batch=16, lr=0.1),
    "W2": Workload("cnn", N=190, K=5, num_samples=150, epochs=2, batch=50, lr=0.1),
    "W2-6": Workload("cnn", N=190, K=6, num_samples=150, epochs=2, batch=50, lr=0.1),
    "W3": Workload("mlp", N=10_000, K=100, num_samples=20, epochs=1, batch=10, lr=0.1),
}
WORKLOADS["tiny"] = replace(WORKLOADS["W1"], N=6, K=3, num_samples=20)  # for the tests

TITLES = {
    "training": {
        "W1": "W1: MLP 784-64-10, 10 of 100 clients, 50 samples, 2 epochs, batch 16, lr 0.1",
        "W2": "W2: LEAF CNN (6.6 M), 5 of 190 clients, 150 samples, 2 epochs, batch 50",
        "W2-6": "W2 with 6 clients per round, which two workers can share evenly",
        "W3": "W3: MLP 784-64-10, 100 of 10,000 clients, 20 samples, 1 epoch, batch 10",
    },
    "filters": {
        "cnn-2000": "LEAF CNN, n = 50, m = 2000",
        "cnn-500": "LEAF CNN, n = 50, m = 500",
        "mlp-100": "MLP 784-64-10, n = 50, m = 100",
        "lstm-34": "LSTM 2 x 256, n = 20, m = 34",
    },
}


def samples(workload: Workload, k: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """The data of client k: one noisy pattern per class. The inputs are small, so that lr 0.1 does not diverge."""
    patterns = class_patterns(workload.classes, workload.shape, SEED)
    rng = np.random.default_rng((SEED, 1, k))
    y = rng.integers(workload.classes, size=workload.num_samples)
    noise = rng.standard_normal((workload.num_samples, *workload.shape), dtype=np.float32)
    scale = np.float32(0.1 if workload.model == "mlp" else 0.5)
    return scale * (patterns[y] + noise), y


@cache
def class_patterns(classes: int, shape: tuple[int, ...], seed: int) -> NDArray[np.float32]:
    """One pattern per class. For images it has squares of 4 x 4 pixels, since pooling removes finer details."""
    rng = np.random.default_rng(seed)
    if len(shape) == 1:
        return rng.standard_normal((classes, *shape), dtype=np.float32)
    return np.kron(rng.standard_normal((classes, 1, 7, 7), dtype=np.float32), np.ones((4, 4), dtype=np.float32))


def all_samples(workload: Workload) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """The data of all clients, in the order of the clients."""
    n = workload.num_samples
    x = np.empty((workload.N * n, *workload.shape), dtype=np.float32)
    y = np.empty(workload.N * n, dtype=np.int64)
    for k in range(workload.N):
        x[k * n : k * n + n], y[k * n : k * n + n] = samples(workload, k)
    return x, y


def probe(workload: Workload) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Samples on which the final models of the contenders are compared: those of the first clients."""
    parts = [samples(workload, k) for k in range(3)]
    return np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts])


def initial(workload: Workload) -> list[NDArray[np.float32]]:
    """The initial weights, in PyTorch's order and shapes (a dense layer is [outputs, inputs])."""
    shapes: list[tuple[int, ...]] = (
        [(64, 784), (64,), (10, 64), (10,)]
        if workload.model == "mlp"
        else [(32, 1, 5, 5), (32,), (64, 32, 5, 5), (64,), (2048, 3136), (2048,), (62, 2048), (62,)]
    )
    rng = np.random.default_rng((SEED, 2))
    weights = []
    for shape in shapes:
        if len(shape) > 1:
            bound = 1 / math.sqrt(math.prod(shape[1:]))
        weights.append((bound * (2 * rng.random(shape, dtype=np.float32) - 1)).astype(np.float32))
    return weights


def cohort(workload: Workload, t: int) -> list[int]:
    """The clients of round t, for contenders that take a list of clients."""
    rng = np.random.default_rng((SEED, 3, t))
    return [int(k) for k in np.sort(rng.choice(workload.N, workload.K, replace=False))]
