"""How simulated clients train: E local epochs or steps of SGD, with the step size eta_t of the round."""

from dataclasses import dataclass

from filfl.algorithms import Algorithm
from filfl.config.sections import Training


@dataclass(frozen=True)
class LocalTraining:
    """The local training of every client and round; `seed` addresses its random draws."""

    seed: int
    algorithm: Algorithm
    options: Training
