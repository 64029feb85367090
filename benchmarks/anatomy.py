"""Where the time of an exact filtering is spent: by part for a small model, by layer for a large one."""

import time
from collections import defaultdict
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
import torch

import limits
from filfl.filtering import FILTERS
from filfl.system import one_thread
from problems import CASES, problem, with_size


def measure(quick: bool) -> dict[str, Any]:
    return {**small_filter(quick), "layers": layers_of_the_large(quick)}


def small_filter(quick: bool) -> dict[str, Any]:
    """Milliseconds per filtering: first the matrix products of the forward passes, then the rest."""
    made = problem(with_size("mlp-100", n=6) if quick else CASES["mlp-100"])
    spent: dict[str, float] = defaultdict(float)

    def timed(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def run(*given: Any) -> Any:
            start = time.perf_counter()
            result = work(*given)
            spent[name] += time.perf_counter() - start
            return result

        return run

    layers = [layer for layer in made.net.module.children() if isinstance(layer, torch.nn.Linear)]
    inputs = [torch.rand(len(made.V), layer.in_features) for layer in layers]
    rounds = []
    with one_thread(), torch.no_grad():
        for _ in range(3 if quick else 40):
            spent.clear()
            start = time.perf_counter()
            R: Any = made.reward()
            R._loss = timed("loss", R._loss)
            R._sum_and_mean = timed("sums", R._sum_and_mean)
            FILTERS["dgf"]()(made.clients, R, np.random.default_rng(0))
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


def layers_of_the_large(quick: bool) -> list[dict[str, Any]]:
    """A forward pass of LEAF's CNN over one chunk of V on one thread: the milliseconds of each layer, and those that
    its operations would take at the speed of a matrix product."""
    made = problem(with_size("cnn-2000", n=1, m=100))
    x, _ = next(made.V.samples.chunks())
    steps: list[tuple[Any, list[float]]] = [(layer, []) for layer in made.net.module.eval().children()]
    rates = []
    with one_thread(), torch.no_grad():
        for _ in range(3 if quick else 40):
            rates.append(limits.matrix_rate(1024))
            y = x
            for layer, times in steps:
                start = time.perf_counter()
                z = layer(y)
                times.append(time.perf_counter() - start)
                y = z
    y, rows = x, []
    for layer, times in steps:
        with torch.no_grad():
            z = layer(y)
        flop = 2 * z[0].numel() * layer.weight[0].numel() * len(z) if hasattr(layer, "weight") else 0
        at_peak = flop / median(rates) / limits.GIGA
        rows.append({"layer": str(layer), "ms": 1000 * median(times), "at_peak_ms": 1000 * at_peak})
        y = z
    return rows
