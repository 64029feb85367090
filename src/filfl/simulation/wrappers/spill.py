"""Trained weights that do not fit into memory: stored in an unnamed temporary file that is mapped."""

import mmap
import os
import tempfile
from collections.abc import Sequence

import torch
from torch import Tensor

from filfl.core.clients import Failure, TrainingClients, Update
from filfl.errors import RunError
from filfl.simulation.wrappers.forwarding import Forwarding
from filfl.weights import Layout, Weights


class SpillingClients(Forwarding):
    """Clients whose trained weights use at most so many bytes of memory; a larger cohort is stored in a file.

    The cohort trains in parts that fit, and each part is moved to the file before the next one trains. The system loads
    the file's pages as they are needed and drops them when memory is short.
    """

    def __init__(self, clients: TrainingClients, layout: Layout, max_bytes: float) -> None:
        super().__init__(clients)
        self._layout = layout
        self._at_a_time = max(1, int(max_bytes // (layout.num_floats * layout.dtype.itemsize)))

    def train(self, t: int, ids: Sequence[int], weights: Weights) -> dict[int, Update | Failure]:
        cohort = list(ids)
        if len(cohort) <= self._at_a_time:
            return self._clients.train(t, cohort, weights)
        rows = mapped(len(cohort), self._layout.num_floats, self._layout.dtype)
        replies: dict[int, Update | Failure] = {}
        for start in range(0, len(cohort), self._at_a_time):
            part = cohort[start : start + self._at_a_time]
            for row, (k, reply) in zip(rows[start:], self._clients.train(t, part, weights).items(), strict=False):
                replies[k] = reply if isinstance(reply, Failure) else _moved(reply, row)
        return replies


def _moved(update: Update, row: Tensor) -> Update:
    assert isinstance(update.weights, Weights)
    row.copy_(update.weights.vector)
    return Update(Weights(row, update.weights.integers.clone()), update.num_examples, update.train_loss)


def mapped(n: int, d: int, dtype: torch.dtype) -> Tensor:
    """Space for n vectors in a file that is removed with the last tensor in it, however this process ends."""
    size = max(1, n * d * dtype.itemsize)
    try:
        with tempfile.TemporaryFile() as file:
            # Reserved now: a full disk under a mapped file would end the process without a message.
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)
            else:
                file.truncate(size)
            memory = mmap.mmap(file.fileno(), size)
    except OSError as error:
        raise RunError(
            f"cannot reserve {size / 1e9:.1f} GB for the trained weights of {n} clients in {tempfile.gettempdir()} "
            f"({error.strerror}); set TMPDIR to a folder with more space, or raise execution.memory"
        ) from None
    return torch.frombuffer(memory, dtype=dtype, count=n * d).view(n, d)
