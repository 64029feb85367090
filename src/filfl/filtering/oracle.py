"""The filter that knows which clients of a simulation are faulty: the best that a filter can do about them."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from filfl.config.schema import NOT_AN_OPTION
from filfl.filtering.base import Client, Filter, Filtering, Reward


@dataclass(frozen=True, kw_only=True)
class Oracle(Filter):
    """Keep exactly the clients without a fault, which only a simulation knows; elsewhere it keeps all."""

    screened: ClassVar[bool] = False

    faulty: frozenset[int] = field(default=frozenset(), metadata=NOT_AN_OPTION)

    def knowing(self, faulty: frozenset[int]) -> Filter:
        return replace(self, faulty=faulty)

    def __call__(self, clients: Sequence[Client], reward: Reward[Client], rng: np.random.Generator) -> Filtering:
        return Filtering(kept=tuple(k for k in clients if k not in self.faulty))
