"""A filter given from Python as a function."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from filfl.config.schema import NOT_AN_OPTION
from filfl.filtering.base import Client, Filter, FilterFunction, Filtering, Reward


@dataclass(frozen=True, kw_only=True)
class OwnFilter(Filter):
    """Your own function (clients, reward, rng) -> Filtering: filfl.simulate(..., filter=function)."""

    name: ClassVar[str] = "own"
    function: FilterFunction | None = field(default=None, metadata=NOT_AN_OPTION)

    def __call__(self, clients: Sequence[Client], reward: Reward[Client], rng: np.random.Generator) -> Filtering:
        assert self.function is not None  # see Config.require_objects
        return self.function(clients, reward, rng)
