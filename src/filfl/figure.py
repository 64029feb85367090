"""What an experiment reproduces of the paper: the claim, and the expectations that it comes down to."""

import re
from dataclasses import dataclass
from typing import Literal

from filfl.errors import ConfigError
from filfl.options import Positive, show


@dataclass(frozen=True, kw_only=True)
class Figure:
    """The section `figure` of an experiment file, for `filfl reproduce`."""

    paper: str
    """Where in the paper."""
    claim: str
    """What the paper says, in a sentence."""
    shrunk: str
    """What the laptop scale has smaller than the paper, and what it keeps."""
    minutes: Positive
    """The expected time of 3 seeds at laptop scale, on two cores."""
    expect: tuple[str, ...] = ()
    """The claim as comparisons that can be computed, such as "dgf accuracy > none"; see `Expectation`."""
    measure: str = "accuracy"
    """What the tests of the table are about."""
    curves: tuple[str, ...] = ("accuracy", "test-loss", "train-loss", "filtered")
    """What is drawn over the rounds."""
    picture: Literal["curves", "bars", "uplink"] = "curves"
    """bars: the measure of every arm at the end; uplink: against what its clients sent. Both are for arms that are
    combinations of factors."""


@dataclass(frozen=True)
class Expectation:
    """`ARM MEASURE SIGN OTHER`: a measure of one arm against the same measure of another, or against a number.

    > and <: the mean is larger or smaller. ~: the means differ by no more than two points of accuracy.
    """

    arm: str
    measure: str
    sign: str
    other: str

    @classmethod
    def parse(cls, text: str) -> "Expectation":
        found = re.fullmatch(r"(\S+) (\S+) ([<>~]) (\S+)", text)
        if not found:
            raise ConfigError(f"figure.expect: write ARM MEASURE > ARM, with <, > or ~ (got {show(text)})")
        return cls(*found.groups())

    @property
    def number(self) -> float | None:
        """The number that the measure is held against, where it is one."""
        try:
            return float(self.other)
        except ValueError:
            return None

    def __str__(self) -> str:
        return f"{self.arm} {self.measure} {self.sign} {self.other}"
