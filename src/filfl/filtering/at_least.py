"""A smallest size of S^f, for aggregations that need some number of replies. It is not in the paper.

Krum and Bulyan refuse to aggregate fewer replies than they were made for, and the noise of differential privacy is
computed for a fixed number of clients per round.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from filfl.filtering.base import Client, FilterFunction, Filtering, Reward, expect
from filfl.filtering.by_models import checked_sets


@dataclass(frozen=True)
class AtLeast:
    """A filter whose set is extended to at least so many clients. A set that is large enough is left as it is."""

    filter: FilterFunction
    least: int

    def __call__(self, clients: Sequence[Client], reward: Reward[Client], rng: np.random.Generator) -> Filtering:
        filtering = self.filter(clients, reward, rng)
        kept = checked_sets(filtering, cast(Sequence[int], clients))[0]
        added = best_to_add(cast(frozenset[Client], kept), clients, reward, self.least)
        # Not extended as well: a runner-up counts only if its true reward is higher than that of the kept set.
        runners_up = tuple(each for each in filtering.runners_up if len(each) >= min(self.least, len(clients)))
        if not added:
            return replace(filtering, runners_up=runners_up)
        note = f"the filter kept {len(kept)} clients; extended to {len(kept) + len(added)}"
        return replace(
            filtering,
            kept=(*filtering.kept, *added),
            runners_up=runners_up,
            notes=(*filtering.notes, note),
        )


def best_to_add(
    kept: frozenset[Client], clients: Sequence[Client], reward: Reward[Client], least: int
) -> tuple[Client, ...]:
    """The clients that extend a set to `least` clients, or to all: one after the other, always the client with which
    the reward is highest, and the first of these in the order of the clients."""
    added: list[Client] = []
    left = [k for k in clients if k not in kept]
    while left and len(kept) < least:
        rewards = []
        for i, k in enumerate(left):
            expect(reward, (kept | {other} for other in left[i:]))
            rewards.append(reward(kept | {k}))
        best = left.pop(int(np.argmax(rewards)))
        kept |= {best}
        added.append(best)
    return tuple(added)
