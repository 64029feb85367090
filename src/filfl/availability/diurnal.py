"""Clients that sleep."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from filfl.availability.base import Availability
from filfl.options import Count, Fraction, NonNegative
from filfl.rng import SETUP, stream


@dataclass(frozen=True, kw_only=True)
class Diurnal(Availability):
    """Day and night: client k is there with probability mean + amplitude * sin(2 pi (t / period + phase_k)).

    phase_k ~ U(0, 1) is its time zone, `period` the rounds of a day; the probability is cut to [0, 1].
    amplitude = 0 is a coin of probability `mean`; every round is drawn independently.
    """

    mean: Fraction = 0.5
    amplitude: NonNegative = 0.4
    period: Count = 24

    def __call__(self, t: int, num_clients: int, seed: int) -> NDArray[np.int64]:
        phase = stream(seed, SETUP, "time-zone").random(num_clients)
        p = self.mean + self.amplitude * np.sin(2 * math.pi * (t / self.period + phase))
        return np.flatnonzero(stream(seed, t, "availability").random(num_clients) < p)
