"""Whether the measurements confirm what the paper claims, decided by a fixed rule."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from scipy import stats

from filfl.config.figure import Expectation, Figure
from filfl.config.schema import unknown_name
from filfl.errors import ConfigError
from filfl.report.formatting import NONE, points, signed
from filfl.report.measures import IN_POINTS, MEASURES
from filfl.report.series import CURVES
from filfl.report.statistics import LEVEL, ArmStatistics, Estimate, difference

MARGIN = 0.02
"""Two arms are equivalent if their difference is within this, in both directions."""
NOT_WORSE = 0.01
"""An arm is not worse than another (>=) if it loses less than this."""
SECOND = "mean-accuracy"
"""The second measure of every claim about accuracy: the mean over all tested rounds."""
TARGET_ROUNDS = "rounds-to-target"
"""The rounds until the target of the comparison; a run that never reaches it counts with all its rounds."""

Decision = Literal["yes", "no", "equivalent", "smaller", "open", "not measured"]
Values = Mapping[str, Mapping[str, Sequence[float | None]]]
"""Arm -> measure -> one number per seed."""

ESTIMATE_RULE = (
    "Every claim is a difference between two arms, or between an arm and a number. The difference is taken seed by "
    "seed (arms with the same seed share data split, availability and initial weights), and its 95 % interval is "
    "Student's over the seeds. Only where two arms share fewer than two seeds, the interval is Welch's."
)
RULES = (
    "A claim that an arm is better (> or <) is decided *yes* if the interval excludes zero on the claimed side, and "
    "*no* if it excludes zero on the other side.",
    "If such a claim is about accuracy and zero is not excluded, it is decided *equivalent* if two one-sided tests at "
    f"{100 * LEVEL:.0f} % place the difference within ±{100 * MARGIN:.0f} points; otherwise *smaller* if the interval "
    "lies below the size that the paper gives. In all other cases it is *open*.",
    "A claim that two arms are alike (~) is decided *yes* by the same two one-sided tests, *no* if the interval lies "
    f"outside ±{100 * MARGIN:.0f} points, and otherwise *open*.",
    f"A claim that an arm is not worse (>=) is decided *yes* if the interval lies above a loss of "
    f"{100 * NOT_WORSE:.0f} point, *no* if it lies below, and otherwise *open*.",
)
SIZE_RULE = "The paper's size is *inside* if the interval contains it, and otherwise *excluded*."
CORRECTION = (
    "q is the p of the deciding test after the correction of Benjamini and Hochberg over all tests on this page. Of "
    f"the decisions with q below {LEVEL}, at most one in twenty is expected to be wrong. A decision with a larger q "
    "has a question mark."
)


@dataclass(frozen=True)
class Outcome:
    """An expectation, what was measured, and what that decides."""

    expectation: Expectation
    estimate: Estimate | None
    """The difference, arm minus other; None if it was not measured."""
    decision: Decision
    tests: Mapping[str, float] = field(default_factory=dict)
    """The p of every test that the rule makes, by name: zero, size, alike, different, worse."""
    adjusted: Mapping[str, float] = field(default_factory=dict)
    """The same after the correction for many tests; empty before."""

    @property
    def decided(self) -> bool:
        return self.decision not in ("open", "not measured")

    @property
    def deciding(self) -> str | None:
        """The test that decides; if nothing is decided, the one that could have."""
        if not self.tests:
            return None
        if self.decision in ("equivalent", "smaller"):
            return {"equivalent": "alike", "smaller": "size"}[self.decision]
        if self.expectation.sign == "~":
            return "different" if self.decision == "no" else "alike"
        return "worse" if self.expectation.sign == ">=" else "zero"

    @property
    def q(self) -> float | None:
        """The p of the deciding test after the correction."""
        return self.adjusted.get(self.deciding) if self.deciding else None

    @property
    def survives(self) -> bool:
        """Whether it is decided also after the correction."""
        return self.decided and self.q is not None and self.q < LEVEL


def check_figure(figure: Figure) -> None:
    """Raise if a figure names a measure or a curve that does not exist."""
    known = [*MEASURES, TARGET_ROUNDS]
    for measure in (figure.measure, *(Expectation.parse(text).measure for text in figure.expect)):
        if measure not in known:
            raise ConfigError(unknown_name("figure: a measure", measure, known))
    for curve in figure.curves:
        if curve not in CURVES:
            raise ConfigError(unknown_name("figure.curves", curve, CURVES))


def values_in(statistics: Sequence[ArmStatistics], rounds: int, target: float | None) -> Values:
    """The numbers that expectations compare. `rounds` is how many rounds a run has; target: None if it is not known."""
    found: dict[str, dict[str, Sequence[float | None]]] = {}
    for arm in statistics:
        found[arm.arm] = {name: spread.values for name, spread in arm.measures.items()}
        if target is None:
            continue
        made = arm.measures["filtered"].values  # every run has it
        until = arm.rounds_to_target.values if arm.rounds_to_target else [None] * len(made)
        found[arm.arm][TARGET_ROUNDS] = [
            None if run is None else rounds if reached is None else reached
            for run, reached in zip(made, until, strict=True)
        ]
    return found


def outcomes(expect: Sequence[str], values: Values) -> list[Outcome]:
    return [outcome_of(Expectation.parse(text), values) for text in expect]


def second_outcome(expectation: Expectation, values: Values) -> Outcome | None:
    """The same expectation in the mean accuracy over all rounds, of which the paper gives no size; None for a claim
    about another measure than the final accuracy."""
    if expectation.measure != "accuracy" or expectation.number is not None:
        return None
    return outcome_of(replace(expectation, measure=SECOND, size=None), values)


def outcome_of(expectation: Expectation, values: Values) -> Outcome:
    mine, theirs = (values.get(arm, {}).get(expectation.measure) for arm in (expectation.arm, expectation.other))
    if expectation.number is not None:
        theirs = [expectation.number] * len(mine or ())
    found = difference(mine, theirs) if mine is not None and theirs is not None else None
    if found is None:
        return Outcome(expectation, None, "not measured")
    decision, tests = decide(found, expectation.sign, expectation.size, expectation.measure in IN_POINTS)
    return Outcome(expectation, found, decision, tests)


def decide(found: Estimate, sign: str, size: float | None, in_points: bool) -> tuple[Decision, dict[str, float]]:
    """The decision by `RULES`, and the p of every test that the rule makes.

    found: the difference. sign, size: as in an `Expectation`. in_points: whether it is a difference of accuracies.
    """
    if sign in "<>":
        return _decide_better(found, 1 if sign == ">" else -1, size, in_points)
    low, high = found.interval
    if sign == "~":
        nearest = MARGIN if found.mean > 0 else -MARGIN
        tests = {"alike": found.p_beyond(MARGIN), "different": found.p_equal(nearest)}
        if tests["alike"] < LEVEL:
            return "yes", tests
        return "no" if low > MARGIN or high < -MARGIN else "open", tests
    tests = {"worse": found.p_equal(-NOT_WORSE)}
    return "yes" if low > -NOT_WORSE else "no" if high < -NOT_WORSE else "open", tests


def _decide_better(
    found: Estimate, side: int, size: float | None, in_points: bool
) -> tuple[Decision, dict[str, float]]:
    """side: 1 if the difference is expected above zero, -1 if below."""
    low, high = sorted(side * end for end in found.interval)
    tests = {"zero": found.p_equal(0)}
    if size is not None:
        tests["size"] = found.p_equal(side * size)
    if in_points:
        tests["alike"] = found.p_beyond(MARGIN)
    if low > 0:
        return "yes", tests
    if high < 0:
        return "no", tests
    if in_points and tests["alike"] < LEVEL:
        return "equivalent", tests
    return "smaller" if size is not None and high < size else "open", tests


def size_inside(outcome: Outcome) -> bool | None:
    """Whether the interval contains the size that the paper gives; None if it gives none, or nothing was measured."""
    size, found = outcome.expectation.size, outcome.estimate
    if size is None or found is None:
        return None
    low, high = found.interval
    return low <= (size if outcome.expectation.sign == ">" else -size) <= high


def measured_text(outcome: Outcome) -> str:
    """The difference with its interval: +0.7 points [-0.3, +1.7]. Against a number, the mean: 0.53 [0.5, 0.56]."""
    found, number = outcome.estimate, outcome.expectation.number
    if found is None:
        return NONE
    ends = (found.mean, *found.interval)
    if number is not None:
        mean, low, high = (f"{number + end:.3g}" for end in ends)
    elif outcome.expectation.measure in IN_POINTS:
        mean, low, high = map(points, ends)
        mean += " points"
    else:
        mean, low, high = map(signed, ends)
    if not found.df:
        return f"{mean} (one seed)"
    return f"{mean} [{low}, {high}]" + ("" if found.paired else " (Welch)")


def corrected(found: Iterable[Outcome]) -> list[Outcome]:
    """The same outcomes with every p after the correction of Benjamini and Hochberg over all of them."""
    found = list(found)
    every = [p for outcome in found for p in outcome.tests.values()]
    adjusted = iter(stats.false_discovery_control(every, method="bh").tolist() if every else [])
    return [replace(outcome, adjusted={name: next(adjusted) for name in outcome.tests}) for outcome in found]
