"""What an availability is: a function of the round, without memory."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]
"""Clients, each once, in ascending order. An array, since it may be all of them, and they may be a million."""


@dataclass(frozen=True, kw_only=True)
class Availability(ABC):
    """Who is here at round t."""

    @abstractmethod
    def __call__(self, t: int, num_clients: int, seed: int) -> Ids:
        """S_t: the ids of the available clients, in ascending order. It depends on nothing but the arguments."""


def among(ids: Sequence[int], everybody: Ids) -> NDArray[np.bool_]:
    """Which of these are among everybody; the time depends on how many are asked about, not on how many there are."""
    asked = np.asarray(ids)
    if not len(everybody):
        return np.zeros(len(asked), dtype=bool)
    places = np.searchsorted(everybody, asked).clip(max=len(everybody) - 1)
    return np.asarray(everybody[places] == asked)
