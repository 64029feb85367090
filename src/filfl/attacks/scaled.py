"""Updates that are too large."""

from dataclasses import dataclass

from torch import Tensor

from filfl.attacks.base import AttackByShare
from filfl.options import Positive


@dataclass(frozen=True, kw_only=True)
class Scaled(AttackByShare):
    """A bad client goes several times too far: it sends w_t + factor (w - w_t)."""

    factor: Positive = 10.0
    """1 is honest, to rounding."""

    def sent(self, w: Tensor, w_t: Tensor) -> Tensor:
        return w_t + self.factor * (w - w_t)
