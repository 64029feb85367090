"""When to filter: by line 3 of Algorithm 1, or by the caption of Figure 2 of the paper, which differs from it."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from filfl.availability.base import Ids
from filfl.core.server import Past


def algorithm_1(t: int, h: int, S_t: Ids, past: Past) -> bool:
    """t mod h == 0, or S_t differs from S_(t-1)."""
    return t % h == 0 or not np.array_equal(S_t, past.previous)


def figure_2(t: int, h: int, S_t: Ids, past: Past) -> bool:
    """A client is available that was not available at the last filtering, or h rounds have passed since."""
    return t - past.filtered_at >= h or not np.isin(S_t, past.seen).all()


WHEN: dict[str, Callable[[int, int, Ids, Past], bool]] = {"algorithm-1": algorithm_1, "figure-2": figure_2}


@dataclass(frozen=True)
class Periodic:
    """Filter at least every h rounds, by one of the two rules of the paper."""

    when: str
    h: int

    def __call__(self, t: int, S_t: Ids, past: Past) -> bool:
        return WHEN[self.when](t, self.h, S_t, past)
