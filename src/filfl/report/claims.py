"""Whether the measurements confirm what the paper claims, decided by a fixed rule."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from filfl.config.figure import Expectation, Figure
from filfl.config.schema import unknown_name
from filfl.errors import ConfigError
from filfl.report.measures import MEASURES
from filfl.report.series import CURVES
from filfl.report.statistics import LEVEL, Tested, compared, paired_interval

MARGIN = 0.02
"""Two arms are alike if their means differ by no more than this."""
SLACK = 0.005
"""An arm is not worse than another (>=) if its mean is at most this much lower, and the lower end of the 95 % interval
at most twice this much."""

Holds = Literal["yes", "direction only", "no", "not measured"]
Verdict = Literal["yes", "in part", "direction only", "no", "not measured"]
Values = Mapping[str, Mapping[str, Sequence[float | None]]]
"""Arm -> measure -> one number per seed."""

RULE = (
    f'An expected difference holds ("yes") if it has the expected sign and Welch\'s two-sided p is below {LEVEL}; '
    f'"direction only" means the expected sign with a larger p. Two arms are alike (~) if their means differ by at '
    f"most {MARGIN}. An arm is not worse than another (>=) if its mean is at most {SLACK} lower, and the lower end of "
    f"the paired 95 % interval of the difference is above -{2 * SLACK}. For a comparison with a number, the mean over "
    f"the seeds is used."
)
VERDICT_RULE = (
    'A name with several expectations is "yes" if all of them hold, "in part" if at least one holds, "no" if none '
    'holds and at least one is "no", "direction only" if none holds and none is "no", and "not measured" if none was '
    "measured."
)


@dataclass(frozen=True)
class Outcome:
    """An expectation and whether it holds."""

    expectation: Expectation
    mean: float | None
    tested: Tested | None
    """Against the other arm; None if the expectation compares with a number."""
    holds: Holds


def check_figure(figure: Figure) -> None:
    """Raise if a figure names a measure or a curve that does not exist."""
    for measure in (figure.measure, *(Expectation.parse(text).measure for text in figure.expect)):
        if measure not in MEASURES:
            raise ConfigError(unknown_name("figure: a measure", measure, MEASURES))
    for curve in figure.curves:
        if curve not in CURVES:
            raise ConfigError(unknown_name("figure.curves", curve, CURVES))


def outcomes(expect: Sequence[str], values: Values) -> list[Outcome]:
    return [_outcome(Expectation.parse(text), values) for text in expect]


def verdict(found: Sequence[Outcome]) -> Verdict:
    """One word for several expectations, by `VERDICT_RULE`."""
    kinds = {outcome.holds for outcome in found}
    if "yes" in kinds:
        return "yes" if kinds == {"yes"} else "in part"
    order: tuple[Verdict, ...] = ("no", "direction only", "not measured")
    return next((word for word in order if word in kinds), "not measured")


def _outcome(expectation: Expectation, values: Values) -> Outcome:
    mine, theirs = (values.get(arm, {}).get(expectation.measure) for arm in (expectation.arm, expectation.other))
    if mine is None:
        return Outcome(expectation, None, None, "not measured")
    mean, tested = float(np.mean([value for value in mine if value is not None])), None
    if expectation.number is not None:
        difference = mean - expectation.number
    elif theirs is None:
        return Outcome(expectation, mean, None, "not measured")
    else:
        tested = compared(mine, theirs)
        difference = tested.difference
    if expectation.sign == ">=":
        low = paired_interval(mine, theirs)[0] if theirs else difference
        return Outcome(expectation, mean, tested, "yes" if difference >= -SLACK and low > -2 * SLACK else "no")
    if expectation.sign == "~":
        return Outcome(expectation, mean, tested, "yes" if abs(difference) <= MARGIN else "no")
    if not (difference > 0 if expectation.sign == ">" else difference < 0):
        return Outcome(expectation, mean, tested, "no")
    chance = tested is not None and (tested.welch_p is None or tested.welch_p >= LEVEL)
    return Outcome(expectation, mean, tested, "direction only" if chance else "yes")
