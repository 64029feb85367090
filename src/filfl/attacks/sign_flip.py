"""Updates with the opposite sign."""

from dataclasses import dataclass

from torch import Tensor

from filfl.attacks.base import AttackByShare


@dataclass(frozen=True, kw_only=True)
class SignFlip(AttackByShare):
    """Opposite updates: an attacking client sends w_t - (w - w_t)."""

    def sent(self, w: Tensor, w_t: Tensor) -> Tensor:
        return w_t - (w - w_t)
