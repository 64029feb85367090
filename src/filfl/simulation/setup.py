"""What a run needs before its first round: a device, a network on it, and the knowledge that they fit the data."""

import contextlib
import ctypes
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from filfl.errors import ConfigError, PluginError, RunError
from filfl.rng import SETUP, stream, torch_seeded
from filfl.weights import FlatModel, Weights

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""glibc's numbers of these settings (malloc.h)."""


class CannotRun(RunError):
    """An executor that cannot do its work here; the text says why."""


def pick_device(name: str) -> torch.device:
    """The device of this name; "auto" is CUDA where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f'execution.device = "{name}" cannot be used here: {reason}') from None
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f'execution.device must be auto, cpu, cuda or cuda:N (got "{name}")')
    return device


def keep_freed_memory() -> None:
    """Tell glibc to keep what is freed for the next step, which takes as much again: given back to the system, it would
    come with a page fault every 4 kB. Other allocators do so by themselves."""
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(M_TRIM_THRESHOLD, 1 << 29)
        libc.mallopt(M_MMAP_THRESHOLD, 1 << 25)


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch compute with one thread, so that sums do not depend on the number of cores; then put it back."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def network(make: Callable[[], nn.Module], seed: int, device: torch.device) -> FlatModel:
    """The network with its initial weights w_1, which depend on the seed alone."""
    with torch_seeded(stream(seed, SETUP, "initial-weights"), device):
        try:
            module = make()
        except (RuntimeError, MemoryError, TypeError, ValueError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise PluginError(f"the model cannot be made: {reason}") from error
        if not isinstance(module, nn.Module):
            raise PluginError(f"model must be a function that makes an nn.Module (got {type(module).__name__})")
        return FlatModel(module, device)


def try_once(test: Callable[[Weights], Mapping[str, Any]], w: Weights, kind: str) -> None:
    """Try the model on the test set once, so that a model that does not fit the data is said before any round."""
    try:
        test(w)
    except Exception as error:
        raise PluginError(
            f"the model, the loss or a metric does not fit the data (a batch of {kind}): "
            f"{type(error).__name__}: {error}"
        ) from error
