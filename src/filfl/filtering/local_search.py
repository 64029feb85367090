"""Local search: not in the paper.

It asks for many more sets than the greedy filters, so it wants a cheap reward: `filter.reward = "ensemble"`.
"""

from collections.abc import Iterator, Sequence
from functools import cache

import numpy as np

from filfl.filtering.base import Client, Filtering, Reward, Step, checked

RESTARTS = 4
"""Random starts, besides everybody and the best single client."""


def local_search(clients: Sequence[Client], reward: Reward[Client], rng: np.random.Generator) -> Filtering:
    """Add, drop and swap clients until nothing improves, from several starts: the best set that was come to.

    The empty set is never asked for. The other sets that the starts came to are the runners-up.
    """
    ground, finite = checked(clients, reward)
    if not ground:
        return Filtering(kept=())
    R = cache(finite)
    ends = dict.fromkeys(_climb(start, ground, R) for start in _starts(ground, R, rng))
    best, *others = ([u for u in ground if u in end] for end in sorted(ends, key=R, reverse=True))
    trace = tuple(Step(u, None, None, float(u in best), u in best) for u in ground)
    return Filtering(kept=tuple(best), trace=trace, runners_up=tuple(map(tuple, others)))


def _starts(ground: list[Client], R: Reward[Client], rng: np.random.Generator) -> Iterator[frozenset[Client]]:
    yield frozenset(ground)
    yield max((frozenset({u}) for u in ground), key=R)
    for _ in range(RESTARTS):
        drawn = rng.random(len(ground)) < 0.5
        yield frozenset(u for u, chosen in zip(ground, drawn, strict=True) if chosen) or frozenset(ground[:1])


def _climb(S: frozenset[Client], ground: list[Client], R: Reward[Client]) -> frozenset[Client]:
    """Take every move that improves as it is met: among equals none, so that this ends.

    Swaps are tried when no client can be added or dropped any more: there are many of them, and they rarely help.
    Taking the best of all moves instead came to the same sets by more evaluations.
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
