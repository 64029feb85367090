"""The interface of an availability: a function of the round, without memory."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from filfl.config.schema import Section

Ids = NDArray[np.int64]
"""Client ids in ascending order, each once. An array, since there may be a million of them."""
NO_IDS: Ids = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, kw_only=True)
class Availability(Section, ABC):
    """Which clients are available in round t."""

    reproducible: ClassVar[bool] = True
    """Whether S_t is a function of the arguments alone, so that it can be computed again."""

    @abstractmethod
    def __call__(self, t: int, num_clients: int, seed: int) -> Ids:
        """S_t: the ids of the available clients, in ascending order. It must depend on the arguments alone."""

    def most_available(self, num_clients: int) -> int:
        """The largest number of clients that can be available in a round."""
        return num_clients


def among(ids: Sequence[int], others: Ids) -> NDArray[np.bool_]:
    """For each of the ids, whether it is in `others`. The time depends on len(ids), hardly on len(others)."""
    asked = np.asarray(ids)
    if not len(others):
        return np.zeros(len(asked), dtype=bool)
    places = np.searchsorted(others, asked).clip(max=len(others) - 1)
    return np.asarray(others[places] == asked)
