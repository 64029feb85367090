"""Labels in reverse order: the usual attack on the data of clients.

Tolpegin, Truex, Gursoy, Liu: Data Poisoning Attacks Against Federated Learning Systems. ESORICS 2020.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from filfl.attacks.base import AttackByShare
from filfl.data.federated import FederatedData

if TYPE_CHECKING:
    from filfl.config.config import Config


@dataclass(frozen=True, kw_only=True)
class LabelFlip(AttackByShare):
    """Attacking clients train with the label C - 1 - y in place of y, where C is the number of classes."""

    def problems_with(self, config: "Config", data: FederatedData) -> list[str]:
        needs = 'attack.name = "label-flip" needs class labels, but this dataset has numeric targets; choose another'
        return [] if data.classes else [needs]

    def poisoned(self, data: FederatedData, seed: int) -> FederatedData:
        y = np.array(data.y)
        for k in self.bad(data.num_clients, seed):
            mine = slice(data.offsets[k], data.offsets[k + 1])
            y[mine] = data.classes - 1 - y[mine]
        return replace(data, y=y)
