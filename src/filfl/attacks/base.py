"""What an attack is: who is bad, and what they send."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import Tensor

from filfl.availability.base import Ids
from filfl.data.federated import floored
from filfl.options import Fraction
from filfl.rng import SETUP, stream


@dataclass(frozen=True, kw_only=True)
class Attack(ABC):
    """Some clients train as they are told and then send something else."""

    @abstractmethod
    def bad(self, num_clients: int, seed: int) -> Ids:
        """Who they are."""

    @abstractmethod
    def sent(self, w: Tensor, w_t: Tensor) -> Tensor:
        """What such a client sends, which was given w_t and trained it to w; neither is to be changed."""


@dataclass(frozen=True, kw_only=True)
class AttackByShare(Attack):
    """An attack by some clients drawn by seed alone: the same for every attack, and a larger share has the smaller."""

    share: Fraction
    """Of all clients, rounded down to whole ones: 0 is nobody, 1 is everybody."""

    def bad(self, num_clients: int, seed: int) -> Ids:
        return stream(seed, SETUP, "attack").permutation(num_clients)[: floored(self.share, num_clients)]
