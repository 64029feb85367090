"""The limits of the machine: the speed of matrix products and of memory copies."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

SIZES = (256, 384, 512, 768, 1024, 1536, 2048)
GIGA = 1e9


def measure(quick: bool) -> dict[str, Any]:
    """The highest measured rates: float32 GFLOPS over several sizes, and GB/s of a large copy (read and written)."""
    cores = len(os.sched_getaffinity(0))
    repeats = 3 if quick else 20
    return {
        "gflops_1_thread": _matrix_peak(1, repeats),
        "gflops_all_threads": _matrix_peak(cores, repeats),
        "gflops_all_processes": _processes(cores, repeats),
        "gigabytes_a_second_1_thread": _copy_peak(1, repeats),
        "gigabytes_a_second_all_threads": _copy_peak(cores, repeats),
        "cores": cores,
    }


def _matrix_peak(threads: int, repeats: int) -> float:
    torch.set_num_threads(threads)
    best = 0.0
    for size in SIZES:
        a, b, c = torch.rand(size, size), torch.rand(size, size), torch.empty(size, size)

        def multiply(a: torch.Tensor = a, b: torch.Tensor = b, c: torch.Tensor = c) -> None:
            torch.mm(a, b, out=c)

        best = max(best, 2 * size**3 / _fastest(multiply, repeats) / GIGA)
    return best


def sustained(seconds: float, size: int = 1536) -> float:
    """GFLOPS of matrix products on all cores over this time: on a shared machine a short peak does not last."""
    before = torch.get_num_threads()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    a, b, c = torch.rand(size, size), torch.rand(size, size), torch.empty(size, size)
    torch.mm(a, b, out=c)
    start, products = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        torch.mm(a, b, out=c)
        products += 1
    took = time.perf_counter() - start
    torch.set_num_threads(before)
    return 2 * size**3 * products / took / GIGA


def matrix_rate(size: int) -> float:
    """GFLOPS of one matrix product, on the current number of torch threads."""
    a, b, c = (torch.rand(size, size) for _ in range(3))
    start = time.perf_counter()
    torch.mm(a, b, out=c)
    return 2 * size**3 / (time.perf_counter() - start) / GIGA


def _copy_peak(threads: int, repeats: int) -> float:
    torch.set_num_threads(threads)
    source = torch.zeros(2**26)  # 256 MB: no cache holds it
    target = torch.zeros_like(source)
    return 2 * source.nbytes / _fastest(lambda: target.copy_(source), repeats) / GIGA


def _fastest(do: Callable[[], object], repeats: int) -> float:
    do()
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        do()
        best = min(best, time.perf_counter() - start)
    return best


def _processes(cores: int, repeats: int) -> float:
    """One process per core with one thread each, all at the same time."""
    code = f"import limits; print(limits._matrix_peak(1, {repeats}))"
    command = [sys.executable, "-c", code]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(cores)]
    return sum(float(each.communicate()[0]) for each in running)
