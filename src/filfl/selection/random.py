"""Random selection, without and with replacement.

Li, Huang, Yang, Wang, Zhang: On the Convergence of FedAvg on Non-IID Data. ICLR 2020.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from filfl.availability.base import Ids
from filfl.selection.base import Ask, Queries, Selection


@dataclass(frozen=True, kw_only=True)
class Random(Selection):
    """K clients of the pool, drawn uniformly without replacement."""

    queries: ClassVar[Queries] = "never"

    def __call__(self, pool: Ids, k: int, ask: Ask, rng: np.random.Generator) -> Sequence[int]:
        return [int(i) for i in rng.choice(pool, size=min(k, len(pool)), replace=False)]


@dataclass(frozen=True, kw_only=True)
class RandomWithReplacement(Selection):
    """K uniform draws with replacement (the paper's Assumption 6). A client drawn twice counts twice."""

    with_replacement: ClassVar[bool] = True
    queries: ClassVar[Queries] = "never"

    def __call__(self, pool: Ids, k: int, ask: Ask, rng: np.random.Generator) -> Sequence[int]:
        return [int(i) for i in rng.choice(pool, size=k, replace=True)]
