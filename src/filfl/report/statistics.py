"""The statistics of a comparison: mean, standard deviation and t-tests over seeds."""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from scipy import stats

from filfl.report.measures import key_of, measure_keys, measure_named
from filfl.runs.metrics import ACCURATE, Primary
from filfl.runs.summary import Records, at_round, reached

LEVEL = 0.05
"""A difference with a p below this is called significant."""


@dataclass(frozen=True)
class Spread:
    """A number over the seeds: mean, standard deviation, how many of how many seeds have it, and the values."""

    mean: float
    std: float
    count: int
    of: int
    values: tuple[float | None, ...]


@dataclass(frozen=True)
class Tested:
    """Two arms compared in one measure."""

    difference: float
    """Difference of the means."""
    welch_p: float | None
    """Two-sided p of Welch's t-test; None if the test is not defined."""
    paired_p: float | None
    """Two-sided p of the paired t-test over seeds: arms with the same seed share split, availability and initial
    weights."""


@dataclass(frozen=True)
class ArmStatistics:
    """The statistics of one arm."""

    arm: str
    against: str
    """The arm it is tested against."""
    measures: dict[str, Spread]
    """Those that its runs have, by the key of `measure_named`."""
    accuracy_at: dict[int, Spread | None]
    """The accuracy in some rounds, or the primary metric where it is another one."""
    rounds_to_target: Spread | None
    uplink_to_target: Spread | None
    """In bytes, over the seeds that reached the target."""
    tests: dict[str, Tested]
    """By measure; empty for an arm that is tested against itself."""

    def p_values(self, measure: str = "accuracy") -> tuple[float | None, float | None]:
        """The p of Welch's test and of the paired test."""
        tested = self.tests.get(measure)
        return (tested.welch_p, tested.paired_p) if tested else (None, None)


def compare_arms(
    runs: Mapping[str, Sequence[Records]],
    against: Mapping[str, str],
    target: float | None,
    at: Sequence[int],
    primary: Primary = ACCURATE,
) -> list[ArmStatistics]:
    """The statistics of every arm. `runs` holds the records of each seed, with the seeds in the same order. Without a
    target, no arm reaches it."""
    keys = measure_keys(records for seeds in runs.values() for records in seeds)

    def to_target(records: Records) -> tuple[int | None, int | None]:
        return (None if target is None else reached(records, target, primary)) or (None, None)

    measures = {
        arm: {key: spread for key in keys if (spread := over_seeds(seeds, measure_named(key).of))}
        for arm, seeds in runs.items()
    }
    return [
        ArmStatistics(
            arm=arm,
            against=against[arm],
            measures=measures[arm],
            accuracy_at={t: over_seeds(seeds, partial(at_round, t=t, primary=primary)) for t in at},
            rounds_to_target=over_seeds(seeds, lambda records: to_target(records)[0]),
            uplink_to_target=over_seeds(seeds, lambda records: to_target(records)[1]),
            tests={
                name: compared(spread.values, measures[against[arm]][name].values)
                for name, spread in measures[arm].items()
                if arm != against[arm] and name in measures[against[arm]]
            },
        )
        for arm, seeds in runs.items()
    ]


def default_target(runs: Mapping[str, Sequence[Records]], primary: Primary = ACCURATE) -> float | None:
    """A tenth worse than the best final value of all arms: nine tenths of an accuracy, 1.1 times a loss. None if no arm
    has a value, or if there is only one arm, which would be measured by itself."""
    finals = [over_seeds(seeds, measure_named(key_of(primary)).of) for seeds in runs.values()]
    means = [spread.mean for spread in finals if spread]
    if not means or len(runs) == 1:
        return None
    best = min(means) if primary.lower else max(means)
    return best * (0.9 if (best >= 0) != primary.lower else 1.1)


def default_rounds(rounds: int) -> tuple[int, ...]:
    """A sixth of the rounds, half of them, and all of them."""
    return tuple(sorted({max(1, rounds // 6), max(1, rounds // 2), rounds}))


def over_seeds(seeds: Sequence[Records], measure: Callable[[Records], float | None]) -> Spread | None:
    """A measure over the seeds; None if no seed has it."""
    values = tuple(map(measure, seeds))
    known = [value for value in values if value is not None]
    if not known:
        return None
    return Spread(float(np.mean(known)), standard_deviation(known), len(known), len(seeds), values)


def standard_deviation(values: Sequence[float]) -> float:
    """The sample standard deviation; 0 for a single value."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


def compared(mine: Sequence[float | None], theirs: Sequence[float | None]) -> Tested:
    """The difference of the means, and both tests. There is no p if a seed is missing or the values do not vary."""
    a, b = ([value for value in values if value is not None] for values in (mine, theirs))
    difference = float(np.mean(a) - np.mean(b))
    welch = paired = None
    if len(mine) == len(a) == len(b) == len(theirs) and len(a) > 1:
        with warnings.catch_warnings():
            # scipy warns where one sample is constant, as |S^f| without a filter is; Welch's test is defined there.
            warnings.simplefilter("ignore", RuntimeWarning)
            if np.ptp(a) + np.ptp(b) > 0:
                welch = float(stats.ttest_ind(a, b, equal_var=False).pvalue)
            if np.ptp(np.subtract(a, b)) > 0:
                paired = float(stats.ttest_rel(a, b).pvalue)
    return Tested(difference, welch, paired)


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds, or a difference of two, with Student's t for its interval and its tests."""

    mean: float
    stderr: float
    df: float
    """Degrees of freedom; 0 for fewer than two seeds, which have no interval and show nothing."""
    seeds: int
    paired: bool = True
    """Whether a difference is taken seed by seed; otherwise it is Welch's."""

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval."""
        half = self.stderr * float(stats.t.isf(LEVEL / 2, self.df)) if self.df else math.inf
        return self.mean - half, self.mean + half

    def p_equal(self, value: float) -> float:
        """Two-sided p of the hypothesis that the mean is `value`. Below 0.05 if the interval excludes it."""
        return min(1.0, 2 * min(self._p_at_most(value), self._p_at_least(value)))

    def p_beyond(self, margin: float) -> float:
        """p of the hypothesis that the mean is not within +-margin, by two one-sided tests."""
        return max(self._p_at_most(-margin), self._p_at_least(margin))

    def _p_at_most(self, value: float) -> float:
        """One-sided p of the hypothesis that the mean is at most `value`."""
        if not self.df:
            return 1.0
        if self.stderr == 0:  # the same in every seed
            return 0.0 if self.mean > value else 1.0
        return float(stats.t.sf((self.mean - value) / self.stderr, self.df))

    def _p_at_least(self, value: float) -> float:
        """One-sided p of the hypothesis that the mean is at least `value`."""
        return Estimate(-self.mean, self.stderr, self.df, self.seeds)._p_at_most(-value)


def estimate(values: Sequence[float | None]) -> Estimate | None:
    """The mean over the seeds that have a value; None if none has one."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    n = len(known)
    # A constant has no deviation; computed, it could have one by rounding.
    deviation = standard_deviation(known) if np.ptp(known) > 0 else 0.0
    return Estimate(float(np.mean(known)), deviation / math.sqrt(n), n - 1, n)


def difference(mine: Sequence[float | None], theirs: Sequence[float | None]) -> Estimate | None:
    """The mean difference of two arms: over the seeds that both have, or Welch's if they share fewer than two."""
    pairs = zip(mine, theirs, strict=True)
    shared = [round(a - b, 12) for a, b in pairs if a is not None and b is not None]
    a, b = estimate(mine), estimate(theirs)
    if len(shared) > 1 or a is None or b is None or not a.df or not b.df:
        return estimate(shared)
    parts = [(each.stderr**2, each.df) for each in (a, b)]
    variance = sum(part for part, _ in parts)
    df = variance**2 / sum(part**2 / df for part, df in parts) if variance else a.df + b.df
    return Estimate(a.mean - b.mean, math.sqrt(variance), df, min(a.seeds, b.seeds), paired=False)
