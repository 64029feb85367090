"""The best subset by exhaustive search: the reference for the other filters."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from filfl.filtering.base import Client, Filter, Filtering, Reward, Step, checked, expect

if TYPE_CHECKING:
    from filfl.config.config import Config
    from filfl.data import FederatedData

MOST = 20
"""The largest number of clients for which all 2^n - 1 subsets are evaluated."""


def opt(clients: Sequence[Client], reward: Reward[Client], rng: np.random.Generator | None = None) -> Filtering:
    """The best of all 2^n - 1 non-empty subsets. Ties go to the smallest set, then to the one of the first clients."""
    ground, R = checked(clients, reward)
    n = len(ground)
    if n > MOST:
        raise ValueError(
            f"opt evaluates all 2^n - 1 subsets of at most {MOST} clients (got {n}); "
            f"set filter.cap to {MOST} or less, or use dgf or rgf"
        )

    def subset(step: int) -> frozenset[Client]:
        mask = step ^ (step >> 1)  # Gray code: consecutive subsets differ by one client
        return frozenset(u for i, u in enumerate(ground) if mask >> i & 1)

    best, best_rank = 0, None
    for step in range(1, 2**n):
        expect(reward, map(subset, range(step, 2**n)))
        value = R(subset(step))
        mask = step ^ (step >> 1)
        # Reversed, so that among subsets of equal size the one with the earlier clients ranks higher.
        earlier = int(f"{mask:0{n}b}"[::-1], 2)
        rank = (value, -mask.bit_count(), earlier)
        if best_rank is None or rank > best_rank:
            best, best_rank = mask, rank
    trace = tuple(Step(u, None, None, float(best >> i & 1), bool(best >> i & 1)) for i, u in enumerate(ground))
    return Filtering(kept=tuple(step.client for step in trace if step.kept), trace=trace)


@dataclass(frozen=True, kw_only=True)
class Opt(Filter):
    """The best of all 2^n - 1 non-empty subsets, for at most 20 clients. Ties go to the smallest set."""

    def __call__(self, clients: Sequence[Client], reward: Reward[Client], rng: np.random.Generator) -> Filtering:
        return opt(clients, reward, rng)

    def problems_with(self, config: "Config", data: "FederatedData") -> list[str]:
        return too_many('filter.name = "opt"', config, data)


def too_many(setting: str, config: "Config", data: "FederatedData") -> list[str]:
    """The message where a filter round may consider more clients than an exhaustive search can."""
    available = config.availability.most_available(data.num_clients)
    if min(available, config.filter.cap or available) <= MOST:
        return []
    return [
        f"{setting} evaluates all subsets of at most {MOST} clients, but {available} may be available; "
        f"set filter.cap to {MOST} or less"
    ]
