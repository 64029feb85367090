"""What the time of an exact filtering of a small model goes into."""

import time
from collections import Counter
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
import torch

from filfl.filtering import FILTERS
from filfl.simulation.setup import one_thread
from problems import CASES, problem, with_size


def measure(quick: bool) -> dict[str, Any]:
    """Milliseconds a filtering: the matrix products of the forward passes alone, then what is around them."""
    made = problem(with_size("mlp-100", n=6) if quick else CASES["mlp-100"])
    spent: Counter[str] = Counter()

    def timed(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def run(*given: Any) -> Any:
            start = time.perf_counter()
            result = work(*given)
            spent[name] += time.perf_counter() - start
            return result

        return run

    layers = [layer for layer in made.net.module if isinstance(layer, torch.nn.Linear)]
    inputs = [torch.rand(len(made.V), layer.in_features) for layer in layers]
    rounds = []
    with one_thread(), torch.no_grad():
        for _ in range(3 if quick else 40):
            spent.clear()
            start = time.perf_counter()
            R: Any = made.reward()
            R._loss = timed("loss", R._loss)
            R._sum_and_mean = timed("sums", R._sum_and_mean)
            FILTERS["dgf"](made.clients, R, np.random.default_rng(0))
            took = time.perf_counter() - start
            begin = time.perf_counter()
            for _ in range(R.evaluations):
                for x, layer in zip(inputs, layers, strict=True):
                    torch.mm(x, layer.weight.T)
            products = time.perf_counter() - begin
            rounds.append((products, spent["loss"] - products, spent["sums"], took - spent["loss"] - spent["sums"]))
    parts = ("matrix products", "the rest of the forward passes and losses", "sums and means of weights", "the rest")
    return {
        "evaluations": R.evaluations,
        "milliseconds": {
            part: 1000 * median(each) for part, each in zip(parts, zip(*rounds, strict=True), strict=True)
        },
    }
