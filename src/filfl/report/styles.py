"""How arms are told apart, the same in every picture."""

from collections.abc import Mapping, Sequence


def arm_places(arms: Sequence[str], against: Mapping[str, str]) -> dict[str, tuple[int, int]]:
    """For every arm the number of its colour and of its line: those tested against one arm share its kind of line."""
    bases = list(dict.fromkeys(against[arm] for arm in arms))
    group = {base: [arm for arm in arms if against[arm] == base] for base in bases}
    return {arm: (group[against[arm]].index(arm), bases.index(against[arm])) for arm in arms}
