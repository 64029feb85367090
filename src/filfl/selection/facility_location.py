"""Facility location by lazy greedy: choose a few points that represent all."""

import heapq

import numpy as np
from numpy.typing import NDArray


def gain(distances: NDArray[np.float64], nearest: NDArray[np.float64], i: int) -> float:
    """The decrease of sum_k min_{j in A} D[k, j] when i joins A. `nearest` holds that minimum for every k.

    No term, and so not the rounded sum either, increases as `nearest` decreases. An earlier gain is therefore an upper
    bound.
    """
    return float(np.maximum(nearest - distances[:, i], 0.0).sum())


def lazy_greedy(distances: NDArray[np.float64], k: int) -> list[int]:
    """The k indices that greedily minimise sum_k min_{i in A} D[k, i]. Ties go to the first index.

    Before the first choice every distance to A counts as the largest pairwise distance. The choices equal those of
    plain greedy, which evaluates every candidate in every step: if the updated gain of a candidate still exceeds all
    upper bounds, no other candidate has to be evaluated.
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
