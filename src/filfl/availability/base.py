"""What an availability is: a function of the round, without memory."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class Availability(ABC):
    """Who is here at round t."""

    @abstractmethod
    def __call__(self, t: int, num_clients: int, seed: int) -> NDArray[np.int64]:
        """S_t: the ids of the available clients, in ascending order. It depends on nothing but the arguments."""
