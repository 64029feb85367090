"""No attack."""

from dataclasses import dataclass

from filfl.attacks.base import Attack
from filfl.availability.base import NO_IDS, Ids


@dataclass(frozen=True, kw_only=True)
class NoAttack(Attack):
    """No attack: every client sends the weights that it trained."""

    def bad(self, num_clients: int, seed: int) -> Ids:
        return NO_IDS
