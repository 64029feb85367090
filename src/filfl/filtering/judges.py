"""On what a set of clients is judged, where the server holds no data: the clients' own (Sections 2.2 and 5.3.3).

Each makes, for one filtering, the loss of candidate weights. What it asks of clients goes through the round's
messages, so that its bytes are counted.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from filfl.availability.base import Ids
from filfl.rng import stream

if TYPE_CHECKING:
    from torch import Tensor

LossOf = Callable[["Tensor"], float]
"""Candidate weights -> their loss."""


class AskLosses(Protocol):
    """What a judge may ask of clients. A client that does not answer is missing from the answer."""

    def losses_of(self, ids: Sequence[int], vector: "Tensor", split: str) -> Mapping[int, float]:
        """The loss of these weights on each client's own data."""
        ...

    def num_examples(self, ids: Ids) -> NDArray[np.int64]: ...


Judge = Callable[[int, int, Ids, AskLosses], tuple[LossOf, list[int]]]
"""(seed, round, available clients, ask) -> the loss, and the clients whose data it goes by"""


def variable(seed: int, t: int, available: Ids, ask: AskLosses) -> tuple[LossOf, list[int]]:
    """A random available client judges on its own validation data, another one in every filtering."""
    k = int(stream(seed, t, "judge").choice(available))

    def loss(vector: "Tensor") -> float:
        return ask.losses_of([k], vector, "validation").get(k, math.nan)

    return loss, [k]


def federated(seed: int, t: int, available: Ids, ask: AskLosses) -> tuple[LossOf, list[int]]:
    """Eq. (2): every available client judges on its own training data, weighted by p_k, its share of the examples."""
    judges = available.tolist()
    sizes = dict(zip(judges, ask.num_examples(available).tolist(), strict=True))

    def loss(vector: "Tensor") -> float:
        answers = ask.losses_of(judges, vector, "train")
        total = sum(sizes[k] for k in answers)
        return sum(sizes[k] * answer for k, answer in answers.items()) / total if total else math.nan

    return loss, judges


JUDGES: dict[str, Judge] = {"variable": variable, "federated": federated}
