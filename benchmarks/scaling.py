"""Seconds as a function of size: n and m of a filtering; K, N and workers of a round."""

import os
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from federation import equal_clients, federation
from filfl.models.cnn import SmallCNN
from filfl.models.mlp import MLP
from problems import Case, problem


def measure(quick: bool) -> dict[str, Any]:
    """{curve: {"x": name of the size, "points": [[size, median seconds], ...]}}"""
    repeats = 2 if quick else 7
    few = 2 if quick else None

    def curve(x: str, sizes: list[int], run: Callable[[int], float]) -> dict[str, Any]:
        return {"x": x, "points": [[size, run(size)] for size in sizes[:few]]}

    def filtering(model: str, lr: float, n: int, m: int) -> float:
        return _median(problem(Case(model, n, m, lr)).dgf, repeats)

    def training(N: int, K: int, features: int, execution: dict[str, Any] | None = None) -> float:
        return _rounds((features,), 10, MLP(hidden=(32,)), N, K, execution or {}, repeats)

    cores = len(os.sched_getaffinity(0))
    return {
        "filter, MLP, m = 100": curve("n", [10, 20, 50, 100], lambda n: filtering("mlp", 0.1, n, 100)),
        "filter, small CNN, m = 100": curve("n", [10, 20, 40], lambda n: filtering("small-cnn", 0.05, n, 100)),
        "filter, MLP, n = 20": curve("m", [50, 100, 500, 2000], lambda m: filtering("mlp", 0.1, 20, m)),
        "filter, small CNN, n = 20": curve("m", [50, 100, 500], lambda m: filtering("small-cnn", 0.05, 20, m)),
        "round, MLP, N = 1,000": curve("K", [5, 10, 20, 50, 100], lambda K: training(1000, K, 784)),
        "round, MLP, K = 10": curve("N", [100, 1000, 10_000, 100_000], lambda N: training(N, 10, 64)),
        "round, small CNN, K = 8, processes": curve(
            "workers",
            sorted({1, 2, cores}),
            lambda workers: _rounds(
                (1, 28, 28),
                10,
                SmallCNN(channels=(8, 16), hidden=64),
                20,
                8,
                {"mode": "processes", "workers": workers},
                repeats,
            ),
        ),
    }


def _rounds(
    shape: tuple[int, ...], classes: int, model: Any, N: int, K: int, execution: dict[str, Any], repeats: int
) -> float:
    """The median seconds of a round: 10 samples per client, 1 epoch, batch 5."""
    rng = np.random.default_rng(0)
    x = 0.1 * rng.standard_normal((N * 10, *shape), dtype=np.float32)
    y = np.arange(N * 10) % classes
    table = {
        "selection": {"k": K},
        "training": {"epochs": 1, "batch": 5, "lr": 0.05},
        "execution": {"device": "cpu", **execution},
    }

    with federation(table, equal_clients(x, y, 10), partial(model.build, shape, classes)) as simulation:
        return _median(simulation.round, repeats)


def _median(do: Callable[[], object], repeats: int) -> float:
    do()
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        do()
        seconds.append(time.perf_counter() - start)
    return median(seconds)
