"""Local search: not in the paper.

It asks for many more sets than the greedy filters, so it wants a cheap reward: `filter.reward = "ensemble"`.
"""

from collections.abc import Iterator, Sequence
from heapq import nlargest

import numpy as np

from filfl.filtering.base import Client, Filtering, Reward, Step, checked

RESTARTS = 2
"""Random starts, besides everybody and the best single client."""


RUNNERS_UP = 10
"""How many sets beside those that the starts came to are worth a second look."""


def local_search(clients: Sequence[Client], reward: Reward[Client], rng: np.random.Generator) -> Filtering:
    """Add, drop and swap clients until nothing improves, from several starts: the best set that was come to.

    The empty set is never asked for. Runners-up are the other sets that the starts came to, then the best of those on
    the way: where the reward is a surrogate, the best by the true one is often close by.
    """
    ground, finite = checked(clients, reward)
    if not ground:
        return Filtering(kept=())
    known: dict[frozenset[Client], float] = {}

    def R(S: frozenset[Client]) -> float:
        if S not in known:
            known[S] = finite(S)
        return known[S]

    ends = dict.fromkeys(_climb(start, ground, R) for start in _starts(ground, R, rng))
    on_the_way = nlargest(RUNNERS_UP, (S for S in known if S not in ends), key=R)
    best, *others = (tuple(u for u in ground if u in S) for S in [*sorted(ends, key=R, reverse=True), *on_the_way])
    trace = tuple(Step(u, None, None, float(u in best), u in best) for u in ground)
    return Filtering(kept=best, trace=trace, runners_up=tuple(others))


def _starts(ground: list[Client], R: Reward[Client], rng: np.random.Generator) -> Iterator[frozenset[Client]]:
    yield frozenset(ground)
    yield max((frozenset({u}) for u in ground), key=R)
    for _ in range(RESTARTS):
        drawn = rng.random(len(ground)) < 0.5
        yield frozenset(u for u, chosen in zip(ground, drawn, strict=True) if chosen) or frozenset(ground[:1])


def _climb(S: frozenset[Client], ground: list[Client], R: Reward[Client]) -> frozenset[Client]:
    """Take every move that improves as it is met: among equals none, so that this ends.

    Swaps are tried when no client can be added or dropped any more: there are many of them, and they rarely help.
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
