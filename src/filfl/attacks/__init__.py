"""What malicious clients send instead of their weights. To add an attack, add one file here and one line below."""

from filfl.attacks.alie import ALIE
from filfl.attacks.base import Attack
from filfl.attacks.gaussian import Gaussian
from filfl.attacks.ipm import IPM
from filfl.attacks.mimic import Mimic
from filfl.attacks.min_max import MinMax
from filfl.attacks.none import NoAttack
from filfl.attacks.scaled import Scaled, SignFlip

ATTACKS: dict[str, type[Attack]] = {
    "none": NoAttack,
    "sign-flip": SignFlip,
    "scaled": Scaled,
    "gaussian": Gaussian,
    "alie": ALIE,
    "ipm": IPM,
    "min-max": MinMax,
    "mimic": Mimic,
}

__all__ = ["ATTACKS", "Attack"]
