"""Clients of unequal reliability."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from filfl.availability.base import Availability
from filfl.options import NonNegative
from filfl.rng import SETUP, stream


@dataclass(frozen=True, kw_only=True)
class Lognormal(Availability):
    """Unequal reliability: client k is there with probability c_k / max_j c_j, where log c_k ~ N(0, sigma^2).

    sigma = 0 is everybody always; with a large sigma a few clients are nearly always there and most hardly ever.
    Every round is drawn independently.
    """

    sigma: NonNegative = 0.5

    def __call__(self, t: int, num_clients: int, seed: int) -> NDArray[np.int64]:
        c = np.exp(self.sigma * stream(seed, SETUP, "reliability").standard_normal(num_clients))
        return np.flatnonzero(stream(seed, t, "availability").random(num_clients) < c / c.max())
