"""Racing: DGF that reads the filtering set in chunks and ends a step once the sign of a - b is certain enough.

An experiment of the filter study, to measure what it saves and what it costs. filfl itself has no such filter.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from filfl.filtering.rewards import C

Losses = Callable[[frozenset[int], int], NDArray[np.float64]]
"""(a set of clients, number of a chunk) -> the losses of their averaged weights on the samples of that chunk"""


def raced_dgf(clients: Sequence[int], losses: Losses, chunks: int, z: float) -> tuple[frozenset[int], float]:
    """The kept clients, and the number of passes over V.

    a - b is the mean over the samples of (l_X - l_(X+u)) - (l_Y - l_(Y-u)). A step ends when that mean lies z standard
    errors away from 0, or when all of V has been read. Chunks are read once, and only for the sets that are compared.
    """
    read: dict[tuple[frozenset[int], int], NDArray[np.float64]] = {}

    def of(subset: frozenset[int], chunk: int) -> NDArray[np.float64] | float:
        if not subset:
            return C  # R({}) = 0
        if (subset, chunk) not in read:
            read[subset, chunk] = losses(subset, chunk)
        return read[subset, chunk]

    X, Y = frozenset[int](), frozenset(clients)
    for u in clients:
        seen = np.empty(0)
        for chunk in range(chunks):
            a = of(X, chunk) - of(X | {u}, chunk)
            b = of(Y, chunk) - of(Y - {u}, chunk)
            seen = np.append(seen, a - b)
            if len(seen) > 1 and abs(seen.mean()) * math.sqrt(len(seen)) / z > seen.std(ddof=1):
                break
        X, Y = (X | {u}, Y) if seen.mean() > 0 else (X, Y - {u})
    return X, len(read) / chunks
