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
from filfl.evaluation import Samples
from filfl.logits import Form, Packed
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
    message: Any = None
    """What it came in, for an aggregation that wants more of it than the weights."""


@dataclass(frozen=True)
class Failure:
    """A client that did not answer as asked, and why."""

    reason: str
    arrived: int = 0
    """Bytes that it sent all the same."""
    twice: bool = False
    """As in `Rehearsed`."""


@dataclass(frozen=True)
class Sheet:
    """What clients are asked about V in one round: to say what the model that they trained says to it.

    V is public and has no targets. It is sent once to a client, which keeps it by its `digest`.
    """

    V: Samples
    digest: str
    new: frozenset[int]
    """Who has not been sent V yet."""
    rows: Tensor | None
    """Which samples of V it is about, the same for everybody; None is all of them."""
    shape: tuple[int, ...]
    """Of the answer before it is packed: how many samples, and what a model says to one."""
    form: Form

    @property
    def samples(self) -> Samples:
        return self.V if self.rows is None else self.V.at(self.rows)


@dataclass(frozen=True)
class Rehearsed:
    """A client's answer that trained and kept its weights to itself."""

    logits: Packed
    """What its model says to the samples of the sheet."""
    num_examples: int
    train_loss: float
    twice: bool = False
    """Whether it was asked a second time, with V, which it no longer had."""


class Learners(Protocol):
    """Who trains and says what it is asked."""

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


class Clients(Learners, Protocol):
    """Who does what the server asks."""

    def rehearse(self, ids: Sequence[int], weights: Weights, job: Job, sheet: Sheet) -> dict[int, Rehearsed | Failure]:
        """Each client trains from `weights`, keeps what it trained to, and answers with its logits on V."""
        ...

    def upload(self, ids: Sequence[int], round: int) -> dict[int, Update | Failure]:
        """What these clients kept in this round. They forget it with the round, whoever was asked."""
        ...


SCALARS = 16
"""Bytes beside the weights in a trained client's answer: its number of examples and its train loss."""
NUMBER = 8
"""Bytes of one loss."""
ROW = 4
"""Bytes of the number of a sample of V."""


def update_bytes(layout: Layout) -> int:
    """What a trained client sends."""
    return layout.num_bytes + SCALARS


def rehearsed_bytes(form: Form, shape: tuple[int, ...]) -> int:
    """What a client sends that keeps its weights; `shape` is that of its logits before they are packed."""
    return form.num_bytes(shape) + SCALARS


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
        return self._count(ids, answers, update_bytes(self._layout))

    def losses(self, ids: Sequence[int], weights: Weights, split: Split) -> dict[int, float | Failure]:
        return self._count(ids, self._clients.losses(ids, weights, split), NUMBER)

    def gradients(self, ids: Sequence[int], weights: Weights) -> dict[int, Tensor | Failure]:
        answers = self._clients.gradients(ids, weights)
        return self._count(ids, answers, self._layout.num_trained * self._layout.dtype.itemsize)

    def num_examples(self, ids: AnyIds) -> NDArray[np.int64]:
        return self._clients.num_examples(ids)

    def rehearse(self, ids: Sequence[int], weights: Weights, job: Job, sheet: Sheet) -> dict[int, Rehearsed | Failure]:
        answers = self._clients.rehearse(ids, weights, job, sheet)
        twice = [k for k, answer in answers.items() if getattr(answer, "twice", False)]
        asked = [*ids, *twice]
        self.downlink += (len(sheet.new.intersection(ids)) + len(twice)) * sheet.V.x.nbytes
        self.downlink += len(asked) * (0 if sheet.rows is None else ROW * len(sheet.rows))
        return self._count(asked, answers, rehearsed_bytes(sheet.form, sheet.shape))

    def upload(self, ids: Sequence[int], round: int) -> dict[int, Update | Failure]:
        """The question itself carries nothing."""
        answers = self._clients.upload(ids, round)
        return self._count((), answers, update_bytes(self._layout))

    def _count(self, ids: Sequence[int], answers: dict[int, Answer], size: int) -> dict[int, Answer]:
        self.downlink += len(ids) * self._layout.num_bytes
        self.uplink += sum(each.arrived if isinstance(each, Failure) else size for each in answers.values())
        return answers
