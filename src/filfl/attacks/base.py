"""The interface of an attack: which clients attack, and what they send."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import Tensor

from filfl.availability.base import Ids
from filfl.config.schema import Fraction, Section
from filfl.data.split import floored
from filfl.rng import SETUP, stream


@dataclass(frozen=True, kw_only=True)
class Attack(Section, ABC):
    """Some clients train like the others and then send different weights."""

    @abstractmethod
    def bad(self, num_clients: int, seed: int) -> Ids:
        """The ids of the attacking clients."""

    @abstractmethod
    def sent(self, w: Tensor, w_t: Tensor) -> Tensor:
        """The weights that an attacking client sends after training w_t to w. Must not modify w or w_t."""


@dataclass(frozen=True, kw_only=True)
class AttackByShare(Attack):
    """An attack by a random share of the clients.

    The draw depends on the seed alone: it is the same for every attack, and the clients of a smaller share are among
    those of a larger one.
    """

    share: Fraction
    """The share of all clients that attack, rounded down to whole clients. 0 is none, 1 is all."""

    def bad(self, num_clients: int, seed: int) -> Ids:
        return stream(seed, SETUP, "attack").permutation(num_clients)[: floored(self.share, num_clients)]
