"""No attack."""

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from filfl.attacks.base import Attack
from filfl.availability.base import Ids


@dataclass(frozen=True, kw_only=True)
class NoAttack(Attack):
    """No attack: every client sends the weights that it trained."""

    def bad(self, num_clients: int, seed: int) -> Ids:
        return np.empty(0, dtype=np.int64)

    def sent(self, w: Tensor, w_t: Tensor) -> Tensor:
        return w
