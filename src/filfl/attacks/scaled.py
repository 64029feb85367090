"""Oversized updates."""

from dataclasses import dataclass

from torch import Tensor

from filfl.attacks.base import AttackByShare
from filfl.config.schema import Positive


@dataclass(frozen=True, kw_only=True)
class Scaled(AttackByShare):
    """Oversized updates: an attacking client sends w_t + factor (w - w_t)."""

    factor: Positive = 10.0
    """How many times larger the update is. 1 is no attack, up to rounding; below 1 the update is too small."""

    def sent(self, w: Tensor, w_t: Tensor) -> Tensor:
        return w_t + self.factor * (w - w_t)
