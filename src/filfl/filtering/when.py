"""When to filter: line 3 of Algorithm 1, and the caption of the paper's Figure 2, which reads differently."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from filfl.availability.base import Ids

NOBODY: Ids = np.empty(0, dtype=np.int64)


@dataclass(frozen=True)
class Past:
    """What the decision looks back on. The start is S_0 = {}, so that the first round filters."""

    previous: Ids
    """S_(t-1)"""
    seen: Ids
    """Who was there at the last filtering."""
    filtered_at: int
    """The round of the last filtering; 0 is never."""


START = Past(previous=NOBODY, seen=NOBODY, filtered_at=0)


def algorithm_1(t: int, h: int, S_t: Ids, past: Past) -> bool:
    """t mod h == 0, or S_t differs from S_(t-1)."""
    return t % h == 0 or not np.array_equal(S_t, past.previous)


def figure_2(t: int, h: int, S_t: Ids, past: Past) -> bool:
    """Somebody is there who was not at the last filtering, or h rounds have passed since."""
    return t - past.filtered_at >= h or not np.isin(S_t, past.seen).all()


WHEN: dict[str, Callable[[int, int, Ids, Past], bool]] = {"algorithm-1": algorithm_1, "figure-2": figure_2}
