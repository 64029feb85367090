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
    """The expected time of 3 seeds at laptop scale, on two cores."""
    expect: tuple[str, ...] = ()
    """The claim as comparisons that can be computed, such as "dgf accuracy > none": ARM MEASURE, then > or < or ~ (a
    difference of at most two points of accuracy) or >= (not worse, see `Expectation`), then another arm or a number."""
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
    """`ARM MEASURE SIGN OTHER`: a measure of one arm against the same measure of another, or against a number.

    > and <: the mean is larger or smaller. ~: the means differ by at most two points of accuracy. >=: not worse, which
    means that the mean is at most half a point lower, and the paired 95 % interval excludes a loss of one point.
    """

    arm: str
    measure: str
    sign: str
    other: str

    @classmethod
    def parse(cls, text: str) -> "Expectation":
        found = re.fullmatch(r"(\S+) (\S+) (>=|[<>~]) (\S+)", text)
        if not found:
            raise ConfigError(f"figure.expect must be ARM MEASURE > ARM, with <, >, >= or ~ (got {show(text)})")
        return cls(*found.groups())

    @property
    def number(self) -> float | None:
        """The number that the measure is compared with; None if it is another arm."""
        try:
            return float(self.other)
        except ValueError:
            return None

    def __str__(self) -> str:
        return f"{self.arm} {self.measure} {self.sign} {self.other}"
