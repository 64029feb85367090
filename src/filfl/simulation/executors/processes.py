"""Simulated clients in parallel worker processes.

The workers run the serial executor, one client at a time with one thread: the results are the serial executor's, bit
for bit, for any number of workers. Samples, weights and results are in shared memory; pipes carry plain values.
"""

import os
import socket
import sys
from collections.abc import Callable, Sequence
from typing import Any

import cloudpickle
import numpy as np
import torch

from filfl.core.clients import Failure, Update
from filfl.core.queries import Query
from filfl.data import FederatedData
from filfl.evaluation import ALIGNED, Loss
from filfl.simulation.executors.pool import CannotRun, Pool
from filfl.simulation.executors.serial import LocalTraining, SerialClients
from filfl.simulation.executors.shared import Segment, Spec
from filfl.simulation.executors.worker import torch_settings
from filfl.simulation.wrappers.forwarding import Forwarding
from filfl.weights import FlatModel, Weights


class ProcessClients(Forwarding):
    """Simulated clients in persistent workers, until they are closed."""

    def __init__(
        self,
        data: FederatedData,
        net: FlatModel,
        loss: Loss,
        training: LocalTraining,
        build: Callable[[], FlatModel],
        workers: int,
    ) -> None:
        """Raises `CannotRun` where worker processes cannot be used."""
        if net.device.type != "cpu":
            raise CannotRun(f"worker processes compute on the CPU, but this run is on {net.device}")
        if os.name != "posix" or not hasattr(socket, "AF_UNIX") or not sys.executable:
            raise CannotRun("this system cannot share unnamed memory with worker processes")
        if isinstance(data.x, np.memmap):
            raise CannotRun("the samples are in a mapped file, but worker processes need them in memory")
        serial = SerialClients(data, net, loss, training)
        super().__init__(serial)
        self._layout = net.layout
        try:
            pickled = torch.frombuffer(bytearray(cloudpickle.dumps((build, loss, training))), dtype=torch.uint8)
        except Exception as error:
            raise CannotRun(
                f"the model, loss or algorithm cannot be sent to another process ({type(error).__name__}: {error})"
            ) from None
        samples, cuts = serial.samples, [torch.from_numpy(cut) for cut in (data.offsets, data.train_ends)]
        world = [pickled, samples.x, samples.y, samples.scale, samples.shift, *cuts, *net.frozen]
        empty = net.layout.empty()
        try:
            # Kept: a worker that dies is replaced.
            self._shared = {"world": Segment.copy(world), "weights": Segment.copy([empty.vector, empty.integers])}
            self._w_t = Weights(*self._shared["weights"].tensors())
            segments = {name: (segment.fd, segment.specs) for name, segment in self._shared.items()}
            setup = {**segments, "settings": torch_settings()}
            descriptors = [segment.fd for segment in self._shared.values()]
            self._pool = Pool(min(workers, data.num_clients), setup, descriptors)
        except OSError as error:
            raise CannotRun(f"worker processes cannot be started: {error.strerror}") from None
        self._stack: Segment | None = None
        self._rows = 0

    def close(self) -> None:
        self._pool.close()

    def train(self, t: int, ids: Sequence[int], weights: Weights) -> dict[int, Update | Failure]:
        replies, rows = self._request_rows(ids, weights, ("train", t))
        return {k: reply if isinstance(reply, Failure) else Update(rows[k], *reply) for k, reply in replies.items()}

    def query(self, query: Query, ids: Sequence[int], weights: Weights) -> dict[int, Any]:
        if not query.is_vector:
            self._share(weights)
            replies = self._pool.request({k: ("query", query, k, 0) for k in self._largest_first(ids)})
            return {k: replies[k] for k in ids}
        replies, rows = self._request_rows(ids, weights, ("query", query))
        trained = self._layout.num_trained
        return {k: reply if isinstance(reply, Failure) else rows[k].vector[:trained] for k, reply in replies.items()}

    def _request_rows(
        self, ids: Sequence[int], weights: Weights, task: tuple[str, Any]
    ) -> tuple[dict[int, Any], dict[int, Weights]]:
        """Run tasks whose result is a vector: the replies in the order of the ids, and each client's row."""
        self._share(weights)
        places = {k: row for row, k in enumerate(dict.fromkeys(ids))}
        stack = self._stack_for(len(places))
        replies = self._pool.request({k: (*task, k, places[k]) for k in self._largest_first(ids)}, stack)
        vectors, integers = stack.tensors()
        vectors = vectors[:, : self._layout.num_floats]
        return {k: replies[k] for k in places}, {k: Weights(vectors[i], integers[i]) for k, i in places.items()}

    def _share(self, weights: Weights) -> None:
        self._w_t.vector.copy_(weights.vector)
        self._w_t.integers.copy_(weights.integers)

    def _largest_first(self, ids: Sequence[int]) -> list[int]:
        """The longest tasks first, so that none is left to a single worker at the end."""
        cohort = np.unique(np.array(ids, dtype=np.int64))
        largest_first: list[int] = cohort[np.argsort(-self.num_examples(cohort), kind="stable")].tolist()
        return largest_first

    def _stack_for(self, rows: int) -> Segment:
        """Memory for this many results: that of the last call, unless it is too small or still in use."""
        if self._stack is None or self._stack.lent or rows > self._rows:
            self._stack, self._rows = None, rows
            layout = self._layout
            step = ALIGNED // layout.dtype.itemsize
            width = -(-layout.num_floats // step) * step
            floats: Spec = ([rows, width], str(layout.dtype).removeprefix("torch."))
            self._stack = Segment.make([floats, ([rows, layout.num_integers], "int64")])
        return self._stack
