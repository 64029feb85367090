"""A worker process: it trains one client at a time, with one thread, until its pipe is closed."""

import contextlib
import os
import pickle
import select
import signal
import sys
import threading
from collections.abc import Mapping
from io import TextIOWrapper
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from typing import Any

import torch
from torch import Tensor

from filfl.core.clients import Failure
from filfl.core.queries import Query
from filfl.simulation.executors.serial import ClientData, SerialClients
from filfl.simulation.executors.shared import Segment
from filfl.system import keep_freed_memory
from filfl.weights import Weights


def torch_settings() -> dict[str, Any]:
    """The settings of torch that change numbers, as plain values."""
    return {
        "dtype": str(torch.get_default_dtype()).removeprefix("torch."),
        "precision": torch.get_float32_matmul_precision(),
        "deterministic": torch.get_deterministic_debug_mode(),
        "flush": float(torch.tensor([1e-40], dtype=torch.float32) * 1.0) == 0.0,
    }


def apply_torch_settings(settings: Mapping[str, Any]) -> None:
    """Use the settings of another process."""
    torch.set_default_dtype(getattr(torch, settings["dtype"]))
    torch.set_float32_matmul_precision(settings["precision"])
    torch.set_deterministic_debug_mode(settings["deterministic"])
    torch.set_flush_denormal(settings["flush"])


def main(setup: Mapping[str, Any]) -> None:
    """Serve the pipe. The parent handles Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if isinstance(sys.stdout, TextIOWrapper):
        # A worker may be killed at any time: what a model prints must not stay in a buffer.
        sys.stdout.reconfigure(line_buffering=True)
    pipe = Connection(setup["pipe"])
    _end_with(pipe)
    with contextlib.suppress(EOFError, ConnectionError):
        _serve(pipe, setup)


def _serve(pipe: Connection, setup: Mapping[str, Any]) -> None:
    torch.set_num_threads(1)
    keep_freed_memory()
    try:
        apply_torch_settings(setup["settings"])
        tasks = _Tasks(setup)
    except Exception as error:
        pipe.send(("cannot", f"{type(error).__name__}: {error}"))
        return
    pipe.send(("ready", None))
    while True:
        name, *arguments = pipe.recv()
        if name == "stack":
            tasks.stack = Segment(recv_handle(pipe), *arguments).tensors()
        else:
            pipe.send(("reply", getattr(tasks, name)(*arguments)))


def _end_with(pipe: Connection) -> None:
    """End this process when the other end of its pipe is closed, even while a client trains."""

    def watch() -> None:
        end = select.poll()
        end.register(pipe.fileno(), 0)
        end.poll()
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()


class _Tasks:
    """The tasks of a worker: the serial executor over shared memory. Replies are plain values, weights are written to a
    row of the stack."""

    def __init__(self, setup: Mapping[str, Any]) -> None:
        pickled, x, y, scale, shift, offsets, train_ends, *frozen = Segment(*setup["world"]).tensors()
        # Code, not weights: the user's own model and loss, by value, from the process that started this one.
        build, loss, training = pickle.loads(pickled.numpy().tobytes())
        self._w_t = Weights(*Segment(*setup["weights"]).tensors())
        data = ClientData(x, y, scale, shift, offsets.numpy(), train_ends.numpy())
        net = build()
        net.use_frozen(frozen)
        self._clients = SerialClients(data, net, loss, training)
        self.stack: list[Tensor] = []
        """The memory that results are written to."""

    def train(self, t: int, k: int, row: int) -> tuple[int, float] | Failure:
        reply = self._clients.train(t, [k], self._w_t)[k]
        if isinstance(reply, Failure):
            return reply
        weights = reply.weights
        assert isinstance(weights, Weights)
        vectors, integers = self.stack
        vectors[row, : len(weights.vector)] = weights.vector
        integers[row] = weights.integers
        return reply.num_examples, reply.train_loss

    def query(self, query: Query, k: int, row: int) -> Any:
        reply = self._clients.query(query, [k], self._w_t)[k]
        if isinstance(reply, Failure) or not query.is_vector:
            return reply
        self.stack[0][row, : len(reply)] = reply
        return None
