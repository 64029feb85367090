"""The interface of an attack: which clients attack, and what they send."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from filfl.availability.base import Ids
from filfl.config.schema import Fraction, Section
from filfl.data.federated import FederatedData
from filfl.data.samples import Array
from filfl.data.split import floored
from filfl.rng import SETUP, stream

Rule = Callable[[Tensor], Tensor]
"""[n, d] -> [d]: the update that the server's aggregation makes of n updates."""

FACTORS = tuple(np.geomspace(0.25, 4, 10).tolist())
"""The factors that attackers try who know how the server combines updates."""


@dataclass(frozen=True)
class Triggered:
    """Test samples of other classes that attackers want to be taken for the target class."""

    x: Array
    target: int


@dataclass(frozen=True, kw_only=True)
class Attack(Section, ABC):
    """Some clients train like the others and then send different weights, or train on different samples."""

    @abstractmethod
    def bad(self, num_clients: int, seed: int) -> Ids:
        """The ids of the attacking clients."""

    def sent(self, w: Tensor, w_t: Tensor) -> Tensor:
        """The weights that an attacking client sends after training w_t to w. Must not modify w or w_t."""
        return w

    def poisoned(self, data: FederatedData, seed: int) -> FederatedData:
        """The data with the samples on which the attacking clients train. The filtering set and the test set stay."""
        return data

    def triggered(self, data: FederatedData) -> Triggered | None:
        """The test samples that measure the success of the attack; None if its only aim is to do harm."""
        return None


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
    rule: Rule | None = None
    """How the server combines updates, where they know it."""
    loss_on_V: Callable[[Tensor], float] | None = None
    """update -> the loss of w_t + update on the server's filtering set, where they know it."""
    gradient_on_V: Callable[[Tensor], Tensor] | None = None
    """The gradient of this loss."""

    @property
    def mean(self) -> Tensor:
        return self.updates.mean(dim=0)

    @property
    def std(self) -> Tensor:
        """The standard deviation of every weight; 0 for a single attacker."""
        return self.updates.std(dim=0) if len(self.updates) > 1 else torch.zeros_like(self.updates[0])

    def most_harmful(self, candidates: Iterable[Tensor]) -> Tensor:
        """The candidate that moves what the server's rule gives farthest away from the mean of the other clients. Their
        updates are not known: those of the attackers stand for them."""
        f, n = len(self.updates), max(self.num_training, len(self.updates) + 1)
        others = self.updates[torch.arange(n - f) % f]
        mean = others.mean(dim=0)

        def harm(candidate: Tensor) -> float:
            stack = torch.cat([others, candidate.expand(f, -1)])
            combined = stack.mean(dim=0) if self.rule is None else self.rule(stack)
            return float(torch.linalg.vector_norm(combined - mean))

        return max(candidates, key=harm)


@dataclass(frozen=True, kw_only=True)
class Collusion(AttackByShare):
    """An attack of clients that see what each of them trained."""

    @abstractmethod
    def sent_together(self, known: Colluders) -> Tensor:
        """[f, d] or [d]: the updates that the attackers send instead of w - w_t."""

    def sent(self, w: Tensor, w_t: Tensor) -> Tensor:
        alone = Colluders((w - w_t)[None], 1, np.random.default_rng(0))
        return w_t + self.sent_together(alone).reshape(-1)
