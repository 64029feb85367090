"""Facility location by lazy greedy: few that stand for all."""

import heapq

import numpy as np
from numpy.typing import NDArray


def gain(distances: NDArray[np.float64], nearest: NDArray[np.float64], i: int) -> float:
    """How much sum_k min_{j in A} D[k, j] falls when i joins A; `nearest` is that minimum for every k.

    Every term, and so the rounded sum, can only fall as `nearest` falls: a gain from before is an upper bound.
    """
    return float(np.maximum(nearest - distances[:, i], 0.0).sum())


def lazy_greedy(distances: NDArray[np.float64], k: int) -> list[int]:
    """The k indices that greedily minimise sum_k min_{i in A} D[k, i]; of equals, the first.

    Before the first choice everybody is as far away as the farthest pair. Exactly the choices of plain greedy,
    which tries everyone in every step: a candidate whose gain, brought up to date, still beats all the upper
    bounds needs no rival to be tried.
    """
    n = len(distances)
    nearest = np.full(n, distances.max(initial=0.0))
    bounds = [(-gain(distances, nearest, i), i, 0) for i in range(n)]
    heapq.heapify(bounds)
    chosen: list[int] = []
    while bounds and len(chosen) < k:
        _, i, as_of = heapq.heappop(bounds)
        if as_of == len(chosen):
            chosen.append(i)
            nearest = np.minimum(nearest, distances[:, i])
        else:
            heapq.heappush(bounds, (-gain(distances, nearest, i), i, len(chosen)))
    return chosen
