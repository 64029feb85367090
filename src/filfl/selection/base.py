"""The interface of a selection: from a pool of clients, it chooses at most K that train."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from filfl.availability.base import Ids
from filfl.config.schema import Count, Section

if TYPE_CHECKING:
    from filfl.config.config import Config
    from filfl.data import FederatedData

AnyIds = Sequence[int] | Ids
Memory = Literal["updates", "predictions"]
Queries = Literal["never", "maybe", "always"]


class Ask(Protocol):
    """The questions that a selection may ask about clients, all of them at the current global model w_t.

    A client that fails to answer is missing from the result and cannot be chosen by it.
    """

    def losses(self, ids: AnyIds) -> Mapping[int, float]:
        """The loss of w_t on each client's own validation data."""

    def gradients(self, ids: AnyIds) -> Mapping[int, Tensor]:
        """The gradient of each client's training loss at w_t."""

    def updates(self, ids: AnyIds) -> Mapping[int, Tensor]:
        """The latest update of each client, w_k - w_t; zero for a client that has not trained yet. The selection must
        have `remembers = "updates"`."""

    def predictions(self, ids: AnyIds) -> Mapping[int, Tensor]:
        """The logits on V of each client's model in the latest filter round, if `filter.transport` is "logits"; zero
        for a client that did not take part. The selection must have `remembers = "predictions"`."""

    def num_examples(self, ids: AnyIds) -> NDArray[np.int64]:
        """The number of training examples of each client, in the order of the ids."""


class Selects(Protocol):
    """The call signature of every selection, including a user's own function.

    The pool is never empty and cannot be written to.
    """

    def __call__(self, pool: Ids, k: int, ask: Ask, rng: np.random.Generator, /) -> Sequence[int]: ...


@dataclass(frozen=True, kw_only=True)
class Selection(Section, ABC):
    """Chooses at most K clients per round."""

    k: Count = 5
    """K, the number of clients that train in an ordinary round and that are averaged in every round. A pool of K or
    fewer clients is taken as a whole (Remark 3 of the paper), except with replacement."""
    every: Count = 1
    """For how many rounds the same clients train: clients are selected in rounds t with t mod every = 0, and when one
    of those of the previous round cannot be selected any more. 1 selects in every round."""

    @property
    def with_replacement(self) -> bool:
        """Whether a client may be chosen several times. If so, K are drawn even from a pool of K or fewer clients."""
        return False

    @property
    def queries(self) -> Queries:
        """Whether it sends queries to clients (`ask.losses`, `ask.gradients`, `ask.num_examples`)."""
        return "maybe"

    @property
    def remembers(self) -> Memory | None:
        """What the server keeps for each client, for `ask.updates` or `ask.predictions`; None is nothing."""
        return None

    @abstractmethod
    def __call__(self, pool: Ids, k: int, ask: Ask, rng: np.random.Generator) -> Sequence[int]:
        """At most k clients from the pool. Random selections draw from `rng` only."""

    def problems(self, config: "Config") -> list[str]:
        N = config.data.known_clients
        if N is not None and self.k > N:
            return [f"selection.k must be between 1 and data.clients = {N} (got {self.k})"]
        return []

    def problems_with(self, config: "Config", data: "FederatedData") -> list[str]:
        if self.k > data.num_clients:
            return [f"selection.k must be between 1 and the {data.num_clients} clients of the data (got {self.k})"]
        return []
