"""Updates with the sign turned round."""

from dataclasses import dataclass

from torch import Tensor

from filfl.attacks.base import AttackByShare


@dataclass(frozen=True, kw_only=True)
class SignFlip(AttackByShare):
    """A bad client goes as far as an honest one in the opposite direction: it sends w_t - (w - w_t)."""

    def sent(self, w: Tensor, w_t: Tensor) -> Tensor:
        return w_t - (w - w_t)
