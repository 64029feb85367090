"""The one door between the server's algorithm and the outside: what a server can ask of clients.

A simulator opens it on one machine, a federation opens it over a network; `round.py` cannot tell them apart.
A client that cannot answer is a `Failure` in the answer, never an exception.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from filfl.algorithms import Algorithm
from filfl.selection.base import AnyIds
from filfl.weights import Layout, Weights

Answer = TypeVar("Answer")
Split = Literal["train", "validation"]


@dataclass(frozen=True)
class Job:
    """What the clients are told to do in one round: E local epochs (or steps) of SGD with step size eta."""

    seed: int
    round: int
    algorithm: Algorithm
    epochs: int | None
    steps: int | None
    batch: int
    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0


@dataclass(frozen=True)
class Update:
    """A trained client's answer. The weights may be a plain state dict, as it came over a wire."""

    weights: Weights | Mapping[str, Any]
    num_examples: int
    train_loss: float
    half: bool = False
    """Whether this machine keeps the weights in half precision, to save room. No client may send them so."""
    message: Any = None
    """What it came in, for an aggregation that wants more of it than the weights."""


@dataclass(frozen=True)
class Failure:
    """A client that did not answer as asked, and why."""

    reason: str


class Clients(Protocol):
    """Who does what the server asks."""

    def train(self, ids: Sequence[int], weights: Weights, job: Job) -> dict[int, Update | Failure]:
        """Each client trains from `weights` on its own data."""
        ...

    def losses(self, ids: Sequence[int], weights: Weights, split: Split) -> dict[int, float | Failure]:
        """Each client's mean loss of `weights` on its own data (on its training data where the split is empty)."""
        ...

    def gradients(self, ids: Sequence[int], weights: Weights) -> dict[int, Tensor | Failure]:
        """Each client's gradient of its mean training loss at `weights`."""
        ...

    def num_examples(self, ids: AnyIds) -> NDArray[np.int64]:
        """How many training examples each client has, as it said when it registered; in the order of the ids."""
        ...


SCALARS = 16
"""Bytes beside the weights in a trained client's answer: its number of examples and its train loss."""
NUMBER = 8
"""Bytes of one loss."""


class Metered:
    """The door for one round, counting the bytes that a real federation would send through it.

    Every message stands for itself: a client that is asked for its loss and then to train receives the model
    twice. Payloads count, the transport's own overhead does not. Who fails to answer was still sent the model.
    """

    def __init__(self, clients: Clients, layout: Layout) -> None:
        self._clients = clients
        self._layout = layout
        self.uplink = 0
        self.downlink = 0

    def train(self, ids: Sequence[int], weights: Weights, job: Job) -> dict[int, Update | Failure]:
        answers = self._clients.train(ids, weights, job)
        return self._count(ids, answers, self._layout.num_bytes + SCALARS)

    def losses(self, ids: Sequence[int], weights: Weights, split: Split) -> dict[int, float | Failure]:
        return self._count(ids, self._clients.losses(ids, weights, split), NUMBER)

    def gradients(self, ids: Sequence[int], weights: Weights) -> dict[int, Tensor | Failure]:
        answers = self._clients.gradients(ids, weights)
        return self._count(ids, answers, self._layout.num_trained * self._layout.dtype.itemsize)

    def num_examples(self, ids: AnyIds) -> NDArray[np.int64]:
        return self._clients.num_examples(ids)

    def _count(self, ids: Sequence[int], answers: dict[int, Answer], size: int) -> dict[int, Answer]:
        self.downlink += len(ids) * self._layout.num_bytes
        self.uplink += size * sum(not isinstance(answer, Failure) for answer in answers.values())
        return answers
