"""What a selection is: out of a pool of clients, the at most K that train."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from filfl.availability.base import Ids
from filfl.options import Count

AnyIds = Sequence[int] | Ids


class Ask(Protocol):
    """What a selection may ask about clients, all of it at the current global model w_t.

    A client that does not answer is missing from the answer, and cannot be chosen for it.
    """

    def losses(self, ids: AnyIds) -> Mapping[int, float]:
        """The loss of w_t on each client's own validation data."""
        ...

    def gradients(self, ids: AnyIds) -> Mapping[int, Tensor]:
        """The gradient of each client's training loss at w_t."""
        ...

    def updates(self, ids: AnyIds) -> Mapping[int, Tensor]:
        """How each client last changed the model; zero for one that has not trained yet."""
        ...

    def predictions(self, ids: AnyIds) -> Mapping[int, Tensor]:
        """What each client's model said to V in the last filtering, where filter rounds move logits; zero for one that
        was not part of it."""
        ...

    def num_examples(self, ids: AnyIds) -> NDArray[np.int64]:
        """How many training examples each client has, in the order of the ids."""
        ...


class Selects(Protocol):
    """The shape of every selection, ours or a user's own. The pool is never empty, and cannot be written to."""

    def __call__(self, pool: Ids, k: int, ask: Ask, rng: np.random.Generator, /) -> Sequence[int]: ...


@dataclass(frozen=True, kw_only=True)
class Selection(ABC):
    """Chooses at most `k` clients a round."""

    k: Count = 5

    with_replacement: ClassVar[bool] = False
    """Whether a client may be drawn several times. Then K are drawn even out of a pool of K or fewer."""

    @property
    def wants_updates(self) -> bool:
        """Whether the server must remember how each client last changed the model."""
        return False

    @property
    def wants_predictions(self) -> bool:
        """Whether the server must remember what the clients said to V."""
        return False

    @abstractmethod
    def __call__(self, pool: Ids, k: int, ask: Ask, rng: np.random.Generator) -> Sequence[int]:
        """At most k clients out of the pool."""
