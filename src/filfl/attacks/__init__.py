"""What malicious clients send, or train on. To add an attack, add one file here and one line below."""

from filfl.attacks.adaptive import Adaptive
from filfl.attacks.alie import ALIE
from filfl.attacks.backdoor import Backdoor
from filfl.attacks.base import Attack
from filfl.attacks.gaussian import Gaussian
from filfl.attacks.ipm import IPM
from filfl.attacks.label_flip import LabelFlip
from filfl.attacks.mimic import Mimic
from filfl.attacks.min_max import MinMax
from filfl.attacks.none import NoAttack
from filfl.attacks.scaled import Scaled, SignFlip

ATTACKS: dict[str, type[Attack]] = {
    "none": NoAttack,
    "label-flip": LabelFlip,
    "sign-flip": SignFlip,
    "scaled": Scaled,
    "gaussian": Gaussian,
    "alie": ALIE,
    "ipm": IPM,
    "min-max": MinMax,
    "mimic": Mimic,
    "backdoor": Backdoor,
    "adaptive": Adaptive,
}

__all__ = ["ATTACKS", "Attack"]
