"""The `Clients` door on one machine, clients in parallel worker processes.

The workers run the serial executor, one client at a time with one thread: the answers are its answers, bit for bit,
whatever the number of workers. Samples, weights and results lie in shared memory; only plain values go over pipes.
"""

import os
import socket
import sys
from collections.abc import Callable, Sequence
from typing import Any

import cloudpickle
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from filfl.clients import Failure, Job, Split, Update
from filfl.data import FederatedData
from filfl.evaluation import ALIGNED, Loss
from filfl.selection.base import AnyIds
from filfl.simulation.pool import Pool
from filfl.simulation.serial import samples_on
from filfl.simulation.setup import CannotRun
from filfl.simulation.shared import Segment, Spec, spec_of
from filfl.simulation.worker import settings
from filfl.weights import FlatModel, Weights


class ProcessClients:
    """Simulated clients in persistent workers, for as long as the context lasts."""

    def __init__(
        self, data: FederatedData, net: FlatModel, loss: Loss, build: Callable[[], FlatModel], workers: int
    ) -> None:
        """Raises `CannotRun` where worker processes cannot do this work."""
        if net.device.type != "cpu":
            raise CannotRun(f"worker processes compute on the CPU, and this run on {net.device}")
        if os.name != "posix" or not hasattr(socket, "AF_UNIX") or not sys.executable:
            raise CannotRun("this system cannot share unnamed memory with worker processes")
        if isinstance(data.x, np.memmap):
            raise CannotRun("the samples lie in a file that is mapped, and worker processes take theirs from memory")
        self._data = data
        self._layout = net.layout
        try:
            pickled = torch.frombuffer(bytearray(cloudpickle.dumps((build, loss))), dtype=torch.uint8)
        except Exception as error:
            raise CannotRun(
                f"the model or the loss cannot be sent to another process ({type(error).__name__}: {error})"
            ) from None
        samples = samples_on(net, data, data.x, data.y)
        world = [
            pickled,
            *(samples.x, samples.y, samples.scale, samples.shift),
            *(torch.from_numpy(cut) for cut in (data.offsets, data.train_ends)),
        ]
        empty = net.layout.empty()
        weights_specs = [spec_of(empty.vector), spec_of(empty.integers)]
        try:
            self._world, world_specs = _shared(world)
            self._weights = Segment.make(weights_specs)
            self._w_t = Weights(*self._weights.tensors(weights_specs))
            told = {
                "world": (self._world.fd, self._world.nbytes),
                "world_specs": world_specs,
                "weights": (self._weights.fd, self._weights.nbytes),
                "weights_specs": weights_specs,
                "settings": settings(),
            }
            self._pool = Pool(min(workers, data.num_clients), told, (self._world.fd, self._weights.fd))
        except OSError as error:
            raise CannotRun(f"worker processes cannot be started: {error.strerror}") from None
        self._stack: Segment | None = None
        self._rows = 0

    def __enter__(self) -> "ProcessClients":
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.close()

    def train(self, ids: Sequence[int], weights: Weights, job: Job) -> dict[int, Update | Failure]:
        told = cloudpickle.dumps(job)
        answers, rows = self._ask_rows(ids, weights, lambda k, row: ("train", k, row, told))

        def update(k: int, num_examples: int, train_loss: float) -> Update:
            vector, integers = rows[k]
            return Update(Weights(vector, integers), num_examples, train_loss)

        return {k: answer if isinstance(answer, Failure) else update(k, *answer) for k, answer in answers.items()}

    def losses(self, ids: Sequence[int], weights: Weights, split: Split) -> dict[int, float | Failure]:
        self._tell(weights)
        answers = self._pool.ask({k: ("losses", k, split) for k in self._largest_first(ids)}, None)
        return {k: answers[k] for k in ids}

    def gradients(self, ids: Sequence[int], weights: Weights) -> dict[int, Tensor | Failure]:
        answers, rows = self._ask_rows(ids, weights, lambda k, row: ("gradients", k, row))
        trained = self._layout.num_trained
        return {k: answer if isinstance(answer, Failure) else rows[k][0][:trained] for k, answer in answers.items()}

    def num_examples(self, ids: AnyIds) -> NDArray[np.int64]:
        of = np.asarray(ids, dtype=np.int64)
        return np.asarray(self._data.train_ends[of] - self._data.offsets[of])

    def _ask_rows(
        self, ids: Sequence[int], weights: Weights, question: Callable[[int, int], Sequence[Any]]
    ) -> tuple[dict[int, Any], dict[int, tuple[Tensor, Tensor]]]:
        """Ask what is answered with a vector: the answers in the order of the ids, and each client's row."""
        self._tell(weights)
        places = {k: row for row, k in enumerate(dict.fromkeys(ids))}
        segment, specs = self._stack_for(len(places))
        answers = self._pool.ask({k: question(k, places[k]) for k in self._largest_first(places)}, (segment, specs))
        vectors, integers = segment.tensors(specs)
        floats = self._layout.num_floats
        return {k: answers[k] for k in places}, {k: (vectors[i, :floats], integers[i]) for k, i in places.items()}

    def _tell(self, weights: Weights) -> None:
        self._w_t.vector.copy_(weights.vector)
        self._w_t.integers.copy_(weights.integers)

    def _largest_first(self, ids: Sequence[int] | dict[int, int]) -> list[int]:
        """The longest work first, so that no worker is left with it at the end."""
        cohort = list(ids)
        sizes = dict(zip(cohort, self.num_examples(cohort).tolist(), strict=True))
        return sorted(sizes, key=lambda k: (-sizes[k], k))

    def _stack_for(self, rows: int) -> tuple[Segment, Sequence[Spec]]:
        """Memory for this many results: that of the last time, unless it is too small or somebody holds on to it."""
        if self._stack is None or self._stack.lent or rows > self._rows:
            self._stack, self._rows = None, rows
            self._stack = Segment.make(self._stack_specs(rows))
        return self._stack, self._stack_specs(self._rows)

    def _stack_specs(self, rows: int) -> list[Spec]:
        layout = self._layout
        step = ALIGNED // layout.dtype.itemsize
        width = -(-layout.num_floats // step) * step
        return [([rows, width], str(layout.dtype).removeprefix("torch.")), ([rows, layout.num_integers], "int64")]


def _shared(tensors: Sequence[Tensor]) -> tuple[Segment, list[Spec]]:
    """A copy of tensors in shared memory."""
    specs = [spec_of(tensor) for tensor in tensors]
    segment = Segment.make(specs)
    for copy, tensor in zip(segment.tensors(specs), tensors, strict=True):
        copy.copy_(tensor)
    return segment, specs
