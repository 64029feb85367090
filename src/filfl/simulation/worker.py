"""A worker process: it computes for one client at a time, with one thread, until its pipe is closed."""

import contextlib
import os
import pickle
import select
import signal
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from io import TextIOWrapper
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from filfl.clients import Failure
from filfl.simulation.serial import SerialClients
from filfl.simulation.setup import keep_freed_memory
from filfl.simulation.shared import Segment
from filfl.weights import Weights


@dataclass(frozen=True)
class SharedData:
    """The clients' samples in shared memory, cut as `FederatedData` is."""

    x: Tensor
    y: Tensor
    scale: Tensor
    shift: Tensor
    offsets: NDArray[np.int64]
    train_ends: NDArray[np.int64]


def settings() -> dict[str, Any]:
    """What a user may have told torch and what changes numbers, as plain values."""
    return {
        "dtype": str(torch.get_default_dtype()).removeprefix("torch."),
        "precision": torch.get_float32_matmul_precision(),
        "deterministic": torch.get_deterministic_debug_mode(),
        "flush": float(torch.tensor([1e-40], dtype=torch.float32) * 1.0) == 0.0,
    }


def apply(settings: Mapping[str, Any]) -> None:
    """Compute as another process does."""
    torch.set_default_dtype(getattr(torch, settings["dtype"]))
    torch.set_float32_matmul_precision(settings["precision"])
    torch.set_deterministic_debug_mode(settings["deterministic"])
    torch.set_flush_denormal(settings["flush"])


def main(told: Mapping[str, Any]) -> None:
    """Serve the pipe. Ctrl-C is the parent's business."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if isinstance(sys.stdout, TextIOWrapper):
        # A worker is ended at any moment: what a model prints must not wait in a buffer.
        sys.stdout.reconfigure(line_buffering=True)
    pipe = Connection(told["pipe"])
    _end_with(pipe)
    with contextlib.suppress(EOFError, ConnectionError):
        _serve(pipe, told)


def _serve(pipe: Connection, told: Mapping[str, Any]) -> None:
    torch.set_num_threads(1)
    keep_freed_memory()
    try:
        apply(told["settings"])
        desk = _Desk(told)
    except Exception as error:
        pipe.send(("cannot", f"{type(error).__name__}: {error}"))
        return
    pipe.send(("ready", None))
    while True:
        what, *arguments = pipe.recv()
        if what == "stack":
            desk.take(Segment(recv_handle(pipe), arguments[0]), arguments[1])
        else:
            pipe.send(getattr(desk, what)(*arguments))


def _end_with(pipe: Connection) -> None:
    """End this process, also in the middle of a client, when the other end of its pipe is gone."""

    def watch() -> None:
        end = select.poll()
        end.register(pipe.fileno(), 0)
        end.poll()
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()


class _Desk:
    """The serial executor over shared memory; every answer is plain values, weights go to a row of the stack."""

    def __init__(self, told: Mapping[str, Any]) -> None:
        pickled, x, y, scale, shift, offsets, train_ends = Segment(*told["world"]).tensors(told["world_specs"])
        # Code, not weights: a user's own model and loss, by value, from the process that started this one.
        build, loss = pickle.loads(pickled.numpy().tobytes())
        self._w_t = Weights(*Segment(*told["weights"]).tensors(told["weights_specs"]))
        data = SharedData(x, y, scale, shift, offsets.numpy(), train_ends.numpy())
        self._clients = SerialClients(data, build(), loss)
        self._stack: list[Tensor] = []

    def take(self, segment: Segment, specs: Any) -> None:
        """From now on, results go into this memory."""
        self._stack = segment.tensors(specs)

    def train(self, k: int, row: int, job: bytes) -> tuple[str, Any]:
        answer = self._clients.train([k], self._w_t, pickle.loads(job))[k]
        if isinstance(answer, Failure):
            return "failure", answer.reason
        weights = answer.weights
        assert isinstance(weights, Weights)
        vectors, integers = self._stack
        vectors[row, : len(weights.vector)] = weights.vector
        integers[row] = weights.integers
        return "answer", (answer.num_examples, answer.train_loss)

    def losses(self, k: int, split: Any) -> tuple[str, Any]:
        answer = self._clients.losses([k], self._w_t, split)[k]
        return ("failure", answer.reason) if isinstance(answer, Failure) else ("answer", answer)

    def gradients(self, k: int, row: int) -> tuple[str, Any]:
        answer = self._clients.gradients([k], self._w_t)[k]
        if isinstance(answer, Failure):
            return "failure", answer.reason
        self._stack[0][row, : len(answer)] = answer
        return "answer", None
