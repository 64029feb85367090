"""The claim of the paper that an experiment reproduces, and how it is checked."""

import re
from dataclasses import dataclass
from typing import Literal

from filfl.config.schema import Positive, show
from filfl.errors import ConfigError

OWN_STUDY = "not in the paper"
"""The value of `paper` for a study of our own."""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """The section `figure` of an experiment file, for `filfl reproduce`."""

    paper: str
    """The figure, table or section of the paper."""
    claim: str
    """The claim of the paper, in one sentence."""
    shrunk: str
    """What is smaller at laptop scale than in the paper, and what is the same."""
    minutes: Positive
    """The time of 3 seeds at laptop scale, on two cores."""
    estimated: bool = False
    """Whether `minutes` is an estimate, because the runs have not been timed."""
    expect: tuple[str, ...] = ()
    """The claim as comparisons that can be computed, such as "dgf accuracy > none by 0.07": ARM MEASURE, then > or < or
    ~ (alike) or >= (not worse), then another arm or a number, then the size of the difference in the paper, if it gives
    one. The first one is the main one."""
    measure: str = "accuracy"
    """The measure of the tests in the table."""
    curves: tuple[str, ...] = ("accuracy", "test-loss", "selected-train-loss", "filtered")
    """The measures that are drawn over the rounds."""
    picture: Literal["curves", "bars", "heat-map", "uplink"] = "curves"
    """curves: the measures over the rounds. bars: the final measure of every arm. heat-map: the same, with the
    first factor in rows and the last in columns. uplink: the final measure against the bytes that clients sent. The
    last three are for arms that are combinations of factors."""

    @property
    def own_study(self) -> bool:
        """Whether it is a study of our own."""
        return self.paper == OWN_STUDY


@dataclass(frozen=True)
class Expectation:
    """`ARM MEASURE SIGN OTHER [by SIZE]`: a measure of one arm against that of another, or against a number.

    > and <: larger or smaller. ~: alike. >=: not worse. `filfl.report.claims` has the rule that decides them.
    """

    arm: str
    measure: str
    sign: str
    other: str
    size: float | None = None
    """How large the difference is in the paper; None if the paper does not say."""

    @classmethod
    def parse(cls, text: str) -> "Expectation":
        found = re.fullmatch(r"(\S+) (\S+) (>=|[<>~]) (\S+)(?: by ([0-9.]+))?", text)
        if not found:
            raise ConfigError(f"figure.expect must be ARM MEASURE > ARM, with <, >, >= or ~ (got {show(text)})")
        arm, measure, sign, other, size = found.groups()
        number = _number(size) if size else None
        if size and (sign not in "<>" or not number):
            raise ConfigError(
                f"figure.expect: the size after by must be a positive number, and needs < or > (got {show(text)})"
            )
        return cls(arm, measure, sign, other, number)

    @property
    def number(self) -> float | None:
        """The number that the measure is compared with; None if it is another arm."""
        return _number(self.other)

    def __str__(self) -> str:
        return f"{self.arm} {self.measure} {self.sign} {self.other}"


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
