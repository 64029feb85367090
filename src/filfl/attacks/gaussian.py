"""Random updates."""

from dataclasses import dataclass

import torch
from torch import Tensor

from filfl.attacks.base import Colluders, Collusion
from filfl.config.schema import Positive


@dataclass(frozen=True, kw_only=True)
class Gaussian(Collusion):
    """Every attacker sends an update of independent normal numbers."""

    std: Positive = 1.0
    """Their standard deviation."""

    def sent_together(self, known: Colluders) -> Tensor:
        noise = known.rng.normal(scale=self.std, size=tuple(known.updates.shape))
        return torch.from_numpy(noise).to(known.updates)
