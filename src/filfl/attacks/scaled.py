"""Updates that are multiplied by a factor: oversized ones, and those with the opposite sign."""

from dataclasses import dataclass

from torch import Tensor

from filfl.attacks.base import AttackByShare
from filfl.config.schema import Positive


@dataclass(frozen=True, kw_only=True)
class Scaled(AttackByShare):
    """Oversized updates: an attacking client sends w_t + factor (w - w_t)."""

    factor: Positive = 10.0
    """The factor by which the update is enlarged. 1 leaves it unchanged, up to rounding; below 1 makes it smaller."""

    def sent(self, w: Tensor, w_t: Tensor) -> Tensor:
        return w_t + self.factor * (w - w_t)


@dataclass(frozen=True, kw_only=True)
class SignFlip(AttackByShare):
    """Opposite updates: an attacking client sends w_t - (w - w_t)."""

    def sent(self, w: Tensor, w_t: Tensor) -> Tensor:
        return w_t - (w - w_t)
