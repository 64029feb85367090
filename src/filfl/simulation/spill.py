"""Trained weights that are too many for memory: in a temporary file that is mapped, and that has no name."""

import mmap
import os
import tempfile
from collections.abc import Sequence

import torch
from torch import Tensor

from filfl.clients import Failure, Job, Learners, Update
from filfl.errors import RunError
from filfl.simulation.forwarding import Forwarding
from filfl.weights import Layout, Weights


class SpillingClients(Forwarding):
    """Clients whose trained weights take at most so many bytes of memory; those of a larger cohort lie in a file.

    The cohort trains in parts that fit, and every part moves to the file before the next one trains. The system reads
    the file's pages as they are needed and drops them when memory is short.
    """

    def __init__(self, clients: Learners, layout: Layout, most_bytes: float) -> None:
        super().__init__(clients)
        self._layout = layout
        self._at_a_time = max(1, int(most_bytes // (layout.num_floats * layout.dtype.itemsize)))

    def train(self, ids: Sequence[int], weights: Weights, job: Job) -> dict[int, Update | Failure]:
        cohort = list(ids)
        if len(cohort) <= self._at_a_time:
            return self._clients.train(cohort, weights, job)
        rows = mapped(len(cohort), self._layout.num_floats, self._layout.dtype)
        answers: dict[int, Update | Failure] = {}
        for start in range(0, len(cohort), self._at_a_time):
            part = cohort[start : start + self._at_a_time]
            for row, (k, answer) in zip(rows[start:], self._clients.train(part, weights, job).items(), strict=False):
                answers[k] = answer if isinstance(answer, Failure) else self._moved(answer, row)
        return answers

    def _moved(self, update: Update, row: Tensor) -> Update:
        assert isinstance(update.weights, Weights)
        row.copy_(update.weights.vector)
        kept = Weights(row, update.weights.integers.clone())
        return Update(kept, update.num_examples, update.train_loss)


def mapped(n: int, d: int, dtype: torch.dtype) -> Tensor:
    """Room for n vectors in a file that is gone with the last tensor in it, whatever ends this process."""
    size = max(1, n * d * dtype.itemsize)
    try:
        with tempfile.TemporaryFile() as file:
            # Reserved now: a disk that runs full under a mapped file would end the process without a word.
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)
            else:
                file.truncate(size)
            memory = mmap.mmap(file.fileno(), size)
    except OSError as error:
        raise RunError(
            f"{size / 1e9:.1f} GB for the trained weights of {n} clients cannot be had in {tempfile.gettempdir()}: "
            f"{error.strerror}. Set TMPDIR to a folder with more room, or raise execution.memory"
        ) from None
    return torch.frombuffer(memory, dtype=dtype, count=n * d).view(n, d)
