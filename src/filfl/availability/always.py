"""All clients in every round."""

from dataclasses import dataclass

import numpy as np

from filfl.availability.base import Availability, Ids


@dataclass(frozen=True, kw_only=True)
class Always(Availability):
    """Every client is available in every round: S_t = {1, ..., N}."""

    def __call__(self, t: int, num_clients: int, seed: int) -> Ids:
        return np.arange(num_clients)
