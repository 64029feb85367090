"""The machine: cores, device, threads, memory and time."""

import ctypes
import os
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from filfl.errors import ConfigError

if TYPE_CHECKING:
    import torch

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""glibc's numbers for these settings (malloc.h)."""


def num_cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def pick_device(name: str) -> "torch.device":
    """The device with this name; "auto" is CUDA where it is available, otherwise the CPU."""
    import torch

    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f'execution.device = "{name}" is not available: {reason}') from None
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f'execution.device must be auto, cpu, cuda or cuda:N (got "{name}")')
    return device


@contextmanager
def one_thread() -> Iterator[None]:
    """Run torch with one thread, so that sums do not depend on the number of cores; restore the number afterwards."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def numerics(deterministic: bool, tf32: bool) -> Iterator[None]:
    """Set how CUDA computes (`execution.deterministic`, `execution.tf32`); restore torch's settings afterwards."""
    import torch

    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    try:
        before = cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32, matmul.allow_tf32
    except RuntimeError:  # torch refuses to read allow_tf32 after its newer interface was used
        raise ConfigError(
            "torch.backends.*.fp32_precision was set before this run; remove that, and use execution.tf32 of the config"
        ) from None
    cudnn.deterministic, cudnn.benchmark = deterministic, not deterministic
    cudnn.allow_tf32 = matmul.allow_tf32 = tf32
    try:
        yield
    finally:
        cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32, matmul.allow_tf32 = before


def keep_freed_memory() -> None:
    """Let glibc keep freed memory for the next training step, which needs the same amount again.

    Memory that was returned to the system costs one page fault per 4 kB. Other allocators keep it by default.
    """
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(M_TRIM_THRESHOLD, 1 << 29)
        libc.mallopt(M_MMAP_THRESHOLD, 1 << 25)


def return_freed_memory() -> None:
    """Return to the system what glibc keeps at the end of a run.

    It is fragmented, so that a process that makes many runs would otherwise grow with every one of them.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


class Stopwatch:
    """Adds up the seconds spent in each phase of a round."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[phase] += time.perf_counter() - start
