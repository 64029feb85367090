"""Inner product manipulation: updates that point away from the others.

Xie, Koyejo, Gupta: Fall of Empires: Breaking Byzantine-tolerant SGD by Inner Product Manipulation. UAI 2019.
"""

from dataclasses import dataclass

from torch import Tensor

from filfl.attacks.base import FACTORS, Colluders, Collusion
from filfl.config.schema import Positive


@dataclass(frozen=True, kw_only=True)
class IPM(Collusion):
    """All attackers send -factor times the mean of what they trained."""

    factor: Positive = 0.5
    """A small factor passes defences by distance; a large one is a strong attack on the mean."""

    optimal: bool = False
    """Use the factor that moves what `aggregation` gives farthest, out of ten between a quarter and four times
    `factor`, as attackers do who know how the server combines updates."""

    def sent_together(self, known: Colluders) -> Tensor:
        if self.optimal:
            return known.most_harmful(-self.factor * factor * known.mean for factor in FACTORS)
        return -self.factor * known.mean
