"""Clients with unequal probabilities of being available."""

from dataclasses import dataclass

import numpy as np

from filfl.availability.base import Availability, Ids
from filfl.config.schema import NonNegative
from filfl.rng import SETUP, stream


@dataclass(frozen=True, kw_only=True)
class Lognormal(Availability):
    """Unequal reliability: client k is available with probability c_k / max_j c_j, where log c_k ~ N(0, sigma^2).

    The c_k are drawn once per seed. Rounds are drawn independently.
    """

    sigma: NonNegative = 0.5
    """How unequal the clients are. 0: all clients are always available. Large: a few clients are nearly always
    available, most hardly ever."""

    def __call__(self, t: int, num_clients: int, seed: int) -> Ids:
        z = stream(seed, SETUP, "reliability").standard_normal(num_clients)
        with np.errstate(over="ignore"):
            c = np.exp(self.sigma * z)
            if not np.isfinite(c).all():  # the same ratios, without overflow
                c = np.exp(self.sigma * (z - z.max()))
        return np.flatnonzero(stream(seed, t, "availability").random(num_clients) < c / c.max())
