"""The paper's time-varying availability."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from filfl.availability.base import Availability
from filfl.options import Count
from filfl.rng import stream


@dataclass(frozen=True, kw_only=True)
class Redraw(Availability):
    """n of the N clients, drawn without replacement at t = 1 and anew whenever t mod every == 0 (the paper's)."""

    n: Count
    every: Count = 5

    def __call__(self, t: int, num_clients: int, seed: int) -> NDArray[np.int64]:
        drawn_at = max(1, t - t % self.every)
        drawn = stream(seed, drawn_at, "availability").choice(num_clients, size=self.n, replace=False)
        return np.sort(drawn)
