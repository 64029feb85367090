"""The best subset, by trying all of them: what the greedy filters are measured against."""

from collections.abc import Sequence

import numpy as np

from filfl.filtering.base import Client, Filtering, Reward, Step, checked, expect

MOST = 20
"""Above this many clients, 2^n - 1 evaluations are refused."""


def opt(clients: Sequence[Client], reward: Reward[Client], rng: np.random.Generator | None = None) -> Filtering:
    """The best of all 2^n - 1 non-empty subsets; of equals, the smallest, then the one of the first clients."""
    ground, R = checked(clients, reward)
    n = len(ground)
    if n > MOST:
        raise ValueError(
            f"opt tries all 2^n - 1 subsets and takes at most {MOST} clients (got {n}); "
            f"set filter.cap to {MOST} or less, or use dgf or rgf"
        )

    def subset(step: int) -> frozenset[Client]:
        mask = step ^ (step >> 1)  # Gray code: each subset differs from the one before by one client
        return frozenset(u for i, u in enumerate(ground) if mask >> i & 1)

    best, best_rank = 0, None
    for step in range(1, 2**n):
        expect(reward, map(subset, range(step, 2**n)))
        value = R(subset(step))
        mask = step ^ (step >> 1)
        # Reversed, so that of two subsets of one size the one with the earlier clients ranks higher.
        earlier = int(f"{mask:0{n}b}"[::-1], 2)
        rank = (value, -mask.bit_count(), earlier)
        if best_rank is None or rank > best_rank:
            best, best_rank = mask, rank
    trace = tuple(Step(u, None, None, float(best >> i & 1), bool(best >> i & 1)) for i, u in enumerate(ground))
    return Filtering(kept=tuple(step.client for step in trace if step.kept), trace=trace)
