"""The interface of an attack: which clients attack, and what they send."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import torch
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


@dataclass(frozen=True)
class Colluders:
    """What the attackers that train in a round know together."""

    updates: Tensor
    """[f, d]: what each of them trained, w - w_t: their estimate of what the others send."""
    num_training: int
    """n: how many clients train in this round."""
    rng: np.random.Generator

    @property
    def mean(self) -> Tensor:
        return self.updates.mean(dim=0)

    @property
    def std(self) -> Tensor:
        """The standard deviation of every weight; 0 for a single attacker."""
        return self.updates.std(dim=0) if len(self.updates) > 1 else torch.zeros_like(self.updates[0])


@dataclass(frozen=True, kw_only=True)
class Collusion(AttackByShare):
    """An attack of clients that see what each of them trained."""

    @abstractmethod
    def sent_together(self, known: Colluders) -> Tensor:
        """[f, d] or [d]: the updates that the attackers send instead of w - w_t."""

    def sent(self, w: Tensor, w_t: Tensor) -> Tensor:
        alone = Colluders((w - w_t)[None], 1, np.random.default_rng(0))
        return w_t + self.sent_together(alone).reshape(-1)
