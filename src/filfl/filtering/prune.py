"""Pruning: drop a client only where the losses on V are evidence that it hurts. It is not in the paper.

The paper's filters keep the set with the lowest loss on V, so they also drop clients for differences that are noise.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from filfl.config.schema import Count, Fraction, NonNegative
from filfl.core.evidence import FilterMemory
from filfl.errors import PluginError
from filfl.filtering.base import Client, Filter, Filtering, Reward, Step
from filfl.filtering.rewards import Floats, OnSamples, equal_weights, fewest, standardised

if TYPE_CHECKING:
    from filfl.config.config import Config


def prune(
    clients: Sequence[int],
    reward: OnSamples,
    evidence: float = 0.75,
    outlier: float = 2.0,
    memory: float = 0.8,
    floor: int | None = None,
) -> Filtering:
    """Start from all clients, and drop one after the other, as long as there is evidence that a client hurts.

    First each client is judged as one of the K clients that are averaged: those whose loss on V is more than `outlier`
    standard errors above that of the median client are dropped. Then the client is dropped without which the loss of
    the average falls most significantly, by a paired test over the samples of V together with the tests of earlier
    filterings, until none is above `evidence`. At least `floor` clients are kept; if unset, K or
    half of the clients, whichever is less: where all clients take part, some must be allowed to go.
    """
    if not isinstance(reward, OnSamples):
        raise PluginError("prune needs the loss of each sample of V, but this reward has one number per set")
    reward = reward.on_present_classes()
    known, n = reward.clients, len(reward.clients)
    least = max(1, fewest(reward.K, n) if floor is None else floor)
    past = Past.of(known, reward.memory)
    S = np.ones(n, dtype=bool)
    S[outliers(reward, outlier)[: max(0, n - least)]] = False
    while S.sum() > least:
        z = np.where(S, past.combined(hurts(S, reward, among=S), memory), -np.inf)
        worst = z.argmax()
        if z[worst] <= evidence:
            break
        S[worst] = False
    kept = {k for k, stays in zip(known, S, strict=True) if stays}
    trace = tuple(Step(k, None, None, float(k in kept), k in kept) for k in clients)
    remembered = past.after(hurts(S, reward), memory).numbers(known) if kept else {}
    return Filtering(tuple(k for k in clients if k in kept), trace, memory=remembered)


def outliers(reward: OnSamples, most: float) -> list[int]:
    """The clients that are, as one of K, more than `most` standard errors worse than the median client; worst first."""
    n = len(reward.clients)
    if not n:
        return []
    losses = reward.losses_near(np.full(n, 1 / n), np.arange(n), 1 / reward.K)
    worst_first = np.argsort(-losses.mean(axis=1), kind="stable")
    z = standardised(losses - losses[worst_first[n // 2]])
    return [i for i in worst_first.tolist() if z[i] > most]


def hurts(S: NDArray[np.bool_], reward: OnSamples, among: NDArray[np.bool_] | None = None) -> Floats:
    """How significantly each client raises the loss of the average of S: the loss with it minus the loss without it,
    divided by the standard error of this difference over the samples of V. 0 for clients that are not `among` those
    asked for, and for a single member, which cannot be compared with anything."""
    size, center = S.sum(), equal_weights(S[None])[0]
    losses = reward.losses_at(center[None])[0]
    z = np.zeros(len(S))
    for inside, share in ((True, -1 / (size - 1) if size > 1 else None), (False, 1 / (size + 1))):
        which = np.flatnonzero((inside == S) if among is None else (inside == S) & among)
        if share is not None and len(which):
            changed = reward.losses_near(center, which, share)
            z[which] = standardised(losses - changed if inside else changed - losses)
    return z


@dataclass(frozen=True)
class Past:
    """The evidence of earlier filterings on each client: a sum of standardised differences, and its variance."""

    total: Floats
    variance: Floats

    @classmethod
    def of(cls, clients: Sequence[int], memory: FilterMemory) -> "Past":
        numbers = np.array([memory.get(k, (0.0, 0.0)) for k in clients], dtype=np.float64).reshape(-1, 2)
        return cls(numbers[:, 0], numbers[:, 1])

    def combined(self, z: Floats, memory: float) -> Floats:
        """New evidence together with the earlier one, by Stouffer's method. Older evidence counts less."""
        after = self.after(z, memory)
        return after.total / np.sqrt(after.variance)

    def after(self, z: Floats, memory: float) -> "Past":
        return Past(z + memory * self.total, 1 + memory**2 * self.variance)

    def numbers(self, clients: Sequence[int]) -> dict[Hashable, tuple[float, ...]]:
        return dict(zip(clients, zip(self.total.tolist(), self.variance.tolist(), strict=True), strict=True))


@dataclass(frozen=True, kw_only=True)
class Prune(Filter):
    """Drop a client only where there is evidence that it hurts, now and in earlier filterings (not in the paper)."""

    reward: ClassVar[str] = "ensemble"
    screened: ClassVar[bool] = False  # it judges each client by itself as well

    evidence: NonNegative = 0.75
    """How significant the harm of a client must be, in standard errors of the loss on V, for it to be dropped. 0 drops
    whoever seems to hurt; large values drop nobody."""
    outlier: NonNegative = 2.0
    """How much worse than the median client a client must be as one of the K averaged clients, in standard errors, to
    be dropped at once. It finds updates that are too large. Large values drop nobody."""
    memory: Fraction = 0.8
    """How much the evidence on a client counts at its next filtering. 0 judges every filtering by itself; 1 never
    forgets, so that a client that improves comes back late."""
    floor: Count | None = None
    """The number of clients that are kept in any case. Unset is selection.k, or half of the considered clients if that
    is less."""

    def __call__(self, clients: Sequence[Client], reward: Reward[Client], rng: np.random.Generator) -> Filtering:
        on_samples = cast(OnSamples, reward)
        return prune(cast(Sequence[int], clients), on_samples, self.evidence, self.outlier, self.memory, self.floor)

    def problems(self, config: "Config") -> list[str]:
        if not config.filter.judged_by_clients:
            return []
        return [
            'filter.name = "prune" needs a filtering set on the server, but that of filter.data = '
            f'"{config.filter.data}" is on clients; set filter.data to "server" or "file"'
        ]
