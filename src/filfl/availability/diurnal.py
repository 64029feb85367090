"""Availability that follows day and night."""

import math
from dataclasses import dataclass

import numpy as np

from filfl.availability.base import Availability, Ids
from filfl.config.schema import Count, Fraction, NonNegative
from filfl.rng import SETUP, stream


@dataclass(frozen=True, kw_only=True)
class Diurnal(Availability):
    """Day and night: client k is available with probability mean + amplitude * sin(2 pi (t / period + phase_k)).

    The phase phase_k ~ U(0, 1) is the time zone of client k, drawn once per seed. The probability is clipped to [0, 1].
    Rounds are drawn independently.
    """

    mean: Fraction = 0.5
    """The probability of being available, averaged over a day (if nothing is clipped). With amplitude = 0: 1 is every
    client always, 0 is never."""
    amplitude: NonNegative = 0.4
    """How far the probability moves up and down in the course of a day. 0 is a constant probability; with a large
    amplitude a client is available for half a day and unavailable for the other half."""
    period: Count = 24
    """The number of rounds in a day."""

    def __call__(self, t: int, num_clients: int, seed: int) -> Ids:
        phase = stream(seed, SETUP, "time-zone").random(num_clients)
        p = self.mean + self.amplitude * np.sin(2 * math.pi * (t / self.period + phase))
        return np.flatnonzero(stream(seed, t, "availability").random(num_clients) < p)
