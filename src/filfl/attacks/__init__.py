"""What malicious clients send instead of their weights. To add an attack, add one file here and one line below."""

from filfl.attacks.base import Attack
from filfl.attacks.none import NoAttack
from filfl.attacks.scaled import Scaled, SignFlip

ATTACKS: dict[str, type[Attack]] = {
    "none": NoAttack,
    "sign-flip": SignFlip,
    "scaled": Scaled,
}

__all__ = ["ATTACKS", "Attack"]
