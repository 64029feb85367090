"""Updates that repeat one client, so that others count less.

Karimireddy, He, Jaggi: Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing. ICLR 2022.
"""

from dataclasses import dataclass

from torch import Tensor

from filfl.attacks.base import Colluders, Collusion


@dataclass(frozen=True, kw_only=True)
class Mimic(Collusion):
    """All attackers send what the first of them trained."""

    def sent_together(self, known: Colluders) -> Tensor:
        return known.updates[0]
