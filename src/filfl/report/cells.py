"""The table of measures of a section: what each arm came to, as texts to read and numbers to sort by."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from filfl.report.collect import Section
from filfl.report.statistics import ArmStatistics, Spread, compare_arms, default_target
from filfl.report.words import NONE, megabytes, p_value, percent, plain, points
from filfl.runs.summary import LAST

Cell = tuple[float | None, str]
"""A number to sort by, and its text."""


@dataclass(frozen=True)
class Measured:
    """The statistics of a section's arms, by name, and the accuracy of "to target"."""

    arms: dict[str, ArmStatistics]
    target: float

    def difference(self, arm: str, other: str) -> float | None:
        """How much more final accuracy one arm has than another."""
        mine, theirs = self.arms[arm].measures.get("accuracy"), self.arms[other].measures.get("accuracy")
        return mine.mean - theirs.mean if mine and theirs and arm != other else None


def measure(section: Section) -> Measured:
    """The numbers of report/statistics.py. Runs that go on still are no matter for a test: p is left out there."""
    records = {arm.name: [run.records if run else [] for run in arm.runs] for arm in section.arms}
    against = {arm.name: arm.against for arm in section.arms}
    target = default_target(records) if section.target is None else section.target
    whole = {arm.name: all(run is not None and run.finished for run in arm.runs) for arm in section.arms}
    found = {}
    for arm in compare_arms(records, against, target, at=()):
        tested = whole[arm.arm] and whole[arm.against]
        found[arm.arm] = arm if tested else dataclasses.replace(arm, tests={})
    return Measured(found, target)


def measures_table(section: Section, measured: Measured) -> dict[str, Any]:
    """Headings with their explanations, and a row of cells for every arm."""
    to_target = f"{100 * measured.target:.3g} %"
    arms = [measured.arms[arm.name] for arm in section.arms]
    columns: list[tuple[str, str, Callable[[ArmStatistics], Cell]]] = [
        (
            "final accuracy",
            f"Test accuracy, mean of the last {LAST} tested rounds; ± is the standard deviation over seeds",
            lambda arm: (_mean(arm.measures.get("accuracy")), percent(arm.measures.get("accuracy"))),
        ),
        (
            "difference",
            "Final accuracy minus that of the arm it is tested against, in percentage points",
            lambda arm: _difference(measured, arm),
        ),
        (
            "Welch p",
            "Two-sided Welch's t-test on the final accuracies",
            lambda arm: (welch_p(arm), p_value(welch_p(arm))),
        ),
        (
            "paired p",
            "Two-sided paired t-test, seed by seed: the arms of a seed share data split, availability and start",
            lambda arm: (paired_p(arm), p_value(paired_p(arm))),
        ),
        ("test loss", "At the end, as the final accuracy", lambda arm: _plain(arm.measures.get("test-loss"), 3)),
        (
            "train loss",
            "At the end: mean over the clients that trained",
            lambda arm: _plain(arm.measures.get("train-loss"), 3),
        ),
        (
            f"rounds to {to_target}",
            "The first round with this test accuracy; over the seeds that reached it (how many, where not all did)",
            lambda arm: _to_target(arm.rounds_to_target, lambda rounds: f"{rounds:.0f}"),
        ),
        (
            f"upload to {to_target}",
            "What the clients had sent until then",
            lambda arm: _to_target(arm.uplink_to_target, megabytes),
        ),
        (
            "upload in all",
            "What the clients sent in the whole run",
            lambda arm: _uplink(arm.measures.get("uplink")),
        ),
        (
            "clients in Sᶠ",
            "How many may be chosen: mean over the rounds",
            lambda arm: _plain(arm.measures.get("filtered"), 1),
        ),
        (
            "mean over clients",
            "The mean of the clients' own test accuracies",
            lambda arm: (_mean(arm.measures.get("client-accuracy")), percent(arm.measures.get("client-accuracy"))),
        ),
        (
            "worst tenth",
            "The same over the tenth of the clients with the lowest",
            lambda arm: (_mean(arm.measures.get("worst-tenth")), percent(arm.measures.get("worst-tenth"))),
        ),
    ]
    rows = [[cell(arm) for _, _, cell in columns] for arm in arms]
    used = [i for i in range(len(columns)) if any(row[i][0] is not None for row in rows)]
    return {
        "headings": [columns[i][:2] for i in used],
        "rows": [[row[i] for i in used] for row in rows],
    }


def _difference(measured: Measured, arm: ArmStatistics) -> Cell:
    difference = measured.difference(arm.arm, arm.against)
    return difference, f"{points(difference)} to {arm.against}" if difference is not None else NONE


def welch_p(arm: ArmStatistics) -> float | None:
    """Of the final accuracy against the other arm."""
    return arm.tests["accuracy"].welch_p if "accuracy" in arm.tests else None


def paired_p(arm: ArmStatistics) -> float | None:
    return arm.tests["accuracy"].paired_p if "accuracy" in arm.tests else None


def _uplink(spread: Spread | None) -> Cell:
    return _mean(spread), NONE if spread is None else megabytes(1e6 * spread.mean)


def _plain(spread: Spread | None, digits: int) -> Cell:
    return _mean(spread), plain(spread, digits)


def _to_target(spread: Spread | None, text: Callable[[float], str]) -> Cell:
    if spread is None:
        return None, "never"
    missed = f" ({spread.count}/{spread.of} seeds)" if spread.count < spread.of else ""
    return spread.mean, text(spread.mean) + missed


def _mean(spread: Spread | None) -> float | None:
    return spread.mean if spread else None


def best(arms: Sequence[ArmStatistics]) -> ArmStatistics | None:
    """The arm with the highest final accuracy; where nobody's was tested, with the lowest loss."""
    accurate = [arm for arm in arms if "accuracy" in arm.measures]
    if accurate:
        return max(accurate, key=lambda arm: arm.measures["accuracy"].mean)
    losses = [arm for arm in arms if "test-loss" in arm.measures]
    return min(losses, key=lambda arm: arm.measures["test-loss"].mean) if losses else None
