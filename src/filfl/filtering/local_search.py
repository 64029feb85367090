"""Local search over subsets. It is not in the paper.

It evaluates many more sets than the greedy filters, so use it with a cheap reward: `filter.reward = "ensemble"`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import nlargest

import numpy as np

from filfl.config.schema import Whole
from filfl.filtering.base import Client, Filter, Filtering, Reward, Step, checked

RUNNERS_UP = 10
"""How many runners-up are taken from the sets that were evaluated on the way."""


def local_search(
    clients: Sequence[Client], reward: Reward[Client], rng: np.random.Generator, restarts: int = 2
) -> Filtering:
    """Add, drop and swap clients until nothing improves, from several starts. Keeps the best set found.

    The starts are all clients, the best single client, and `restarts` random sets. The empty set is never evaluated.
    The runners-up are the results of the other starts, then the best sets evaluated on the way: if the reward is a
    surrogate, the best set by the true reward is often among them.
    """
    ground, finite = checked(clients, reward)
    if not ground:
        return Filtering(kept=())
    known: dict[frozenset[Client], float] = {}

    def R(S: frozenset[Client]) -> float:
        if S not in known:
            known[S] = finite(S)
        return known[S]

    ends = dict.fromkeys(_climb(start, ground, R) for start in _starts(ground, R, rng, restarts))
    on_the_way = nlargest(RUNNERS_UP, (S for S in known if S not in ends), key=R)
    best, *others = (tuple(u for u in ground if u in S) for S in [*sorted(ends, key=R, reverse=True), *on_the_way])
    trace = tuple(Step(u, None, None, float(u in best), u in best) for u in ground)
    return Filtering(kept=best, trace=trace, runners_up=tuple(others))


@dataclass(frozen=True, kw_only=True)
class LocalSearch(Filter):
    """Add, drop and swap clients until nothing improves, from several starts (for a cheap reward; not in the paper)."""

    restarts: Whole = 2
    """The number of random starts, in addition to all clients and the best single client. 0 makes the search
    deterministic; each further start costs about one more search."""

    def __call__(self, clients: Sequence[Client], reward: Reward[Client], rng: np.random.Generator) -> Filtering:
        return local_search(clients, reward, rng, self.restarts)


def _starts(
    ground: list[Client], R: Reward[Client], rng: np.random.Generator, restarts: int
) -> Iterator[frozenset[Client]]:
    yield frozenset(ground)
    yield max((frozenset({u}) for u in ground), key=R)
    for _ in range(restarts):
        drawn = rng.random(len(ground)) < 0.5
        yield frozenset(u for u, chosen in zip(ground, drawn, strict=True) if chosen) or frozenset(ground[:1])


def _climb(S: frozenset[Client], ground: list[Client], R: Reward[Client]) -> frozenset[Client]:
    """Take every move that strictly improves the reward, in the order of the clients, until there is none.

    Swaps are tried only when no client can be added or dropped, since there are many swaps and they rarely help.
    """
    while True:
        before = S
        for u in ground:
            flipped = S ^ {u}
            if flipped and R(flipped) > R(S):
                S = flipped
        if before != S:
            continue
        for u in ground:
            for v in ground:
                if u in S and v not in S and R(S - {u} | {v}) > R(S):
                    S = S - {u} | {v}
        if before == S:
            return S
