"""Whether what was measured is what the paper says: a rule, not an opinion."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from filfl.errors import ConfigError
from filfl.figure import Expectation, Figure
from filfl.options import unknown_name
from filfl.report.curves import CURVES
from filfl.report.measures import MEASURES
from filfl.report.statistics import Tested, compared

LEVEL = 0.05
"""A difference holds where its direction does and p is below this."""
MARGIN = 0.02
"""Two arms are alike where their means differ by no more than this."""

Holds = Literal["yes", "direction only", "no", "not measured"]
Values = Mapping[str, Mapping[str, Sequence[float | None]]]
"""Arm -> measure -> the numbers of the seeds."""

RULE = (
    f"A difference holds when its direction is the paper's and Welch's two-sided p is below {LEVEL}; "
    f'"direction only" is the right direction with a larger p. Two arms are alike (~) when their means differ '
    f"by at most {MARGIN}. Against a number, the mean over the seeds is compared."
)


@dataclass(frozen=True)
class Outcome:
    """An expectation, and what became of it."""

    expectation: Expectation
    mean: float | None
    tested: Tested | None
    """Against the other arm; None against a number."""
    holds: Holds


def check_figure(figure: Figure) -> None:
    """Raise where a figure is about something that is not measured."""
    for measure in (figure.measure, *(Expectation.parse(text).measure for text in figure.expect)):
        if measure not in MEASURES:
            raise ConfigError(unknown_name("figure: a measure", measure, MEASURES))
    for curve in figure.curves:
        if curve not in CURVES:
            raise ConfigError(unknown_name("figure.curves", curve, CURVES))


def outcomes(expect: Sequence[str], values: Values) -> list[Outcome]:
    return [_outcome(Expectation.parse(text), values) for text in expect]


def verdict(found: Sequence[Outcome]) -> str:
    """One word for several expectations."""
    kinds = {outcome.holds for outcome in found}
    return kinds.pop() if len(kinds) == 1 else "in part" if kinds & {"yes", "direction only"} else "no"


def _outcome(expectation: Expectation, values: Values) -> Outcome:
    mine = values.get(expectation.arm, {}).get(expectation.measure)
    if mine is None:
        return Outcome(expectation, None, None, "not measured")
    mean = float(np.mean([value for value in mine if value is not None]))
    if expectation.number is not None:
        return Outcome(expectation, mean, None, _direction(expectation.sign, mean - expectation.number))
    theirs = values.get(expectation.other, {}).get(expectation.measure)
    if theirs is None:
        return Outcome(expectation, mean, None, "not measured")
    tested = compared(mine, theirs)
    holds = _direction(expectation.sign, tested.difference)
    if holds == "yes" and expectation.sign != "~" and (tested.welch_p is None or tested.welch_p >= LEVEL):
        holds = "direction only"
    return Outcome(expectation, mean, tested, holds)


def _direction(sign: str, difference: float) -> Holds:
    right = {">": difference > 0, "<": difference < 0, "~": abs(difference) <= MARGIN}[sign]
    return "yes" if right else "no"
