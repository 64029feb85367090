"""A little is enough: updates that hide in the variation between clients.

Baruch, Baruch, Goldberg: A Little Is Enough: Circumventing Defenses For Distributed Learning. NeurIPS 2019.
"""

from dataclasses import dataclass

from torch import Tensor

from filfl.attacks.base import FACTORS, Colluders, Collusion
from filfl.config.schema import Positive


@dataclass(frozen=True, kw_only=True)
class ALIE(Collusion):
    """All attackers send mean + z std, for every weight over what they trained."""

    z: Positive | None = None
    """Unset: the largest z with which a majority can be nearer to what the attackers send than to the mean, from the
    numbers of clients and attackers that train in a round."""

    optimal: bool = False
    """Use the z that moves what `aggregation` gives farthest, out of ten between a quarter and four times that z, as
    attackers do who know how the server combines updates."""

    def sent_together(self, known: Colluders) -> Tensor:
        z = largest_z(known.num_training, len(known.updates)) if self.z is None else self.z
        if self.optimal:
            return known.most_harmful(known.mean + z * factor * known.std for factor in FACTORS)
        return known.mean + z * known.std


def largest_z(n: int, f: int) -> float:
    """z_max of the paper: s = floor(n / 2 + 1) - f clients that are not attackers must support them."""
    from scipy.stats import norm  # it takes a second to import, in every worker process

    needed = n // 2 + 1 - f
    share = (n - f - needed) / max(n - f, 1)
    return max(0.0, float(norm.ppf(min(max(share, 0.5), 0.9999))))
