"""The numbers of a comparison: means, deviations and tests over seeds."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from scipy import stats

from filfl.report.measures import MEASURES, Records
from filfl.runs.summary import at_round, reached


@dataclass(frozen=True)
class Spread:
    """A number over the seeds: mean, standard deviation, of how many of them, and the number of every seed."""

    mean: float
    std: float
    count: int
    of: int
    values: tuple[float | None, ...]


@dataclass(frozen=True)
class Tested:
    """Two arms in one measure."""

    difference: float
    """Of the means."""
    welch_p: float | None
    """Two-sided p of Welch's t-test; None where it says nothing."""
    paired_p: float | None
    """The same of the paired test, seed by seed: the arms of a seed share split, availability and start."""


@dataclass(frozen=True)
class ArmStatistics:
    """What a comparison says about one arm."""

    arm: str
    against: str
    measures: dict[str, Spread]
    """Those of `MEASURES` that its runs have."""
    accuracy_at: dict[int, Spread | None]
    rounds_to_target: Spread | None
    uplink_to_target: Spread | None
    """In bytes; over the seeds that reached the target."""
    tests: dict[str, Tested]
    """Of every measure against the other arm; empty for an arm that is its own."""


def compare_arms(
    runs: Mapping[str, Sequence[Records]], against: Mapping[str, str], target: float, at: Sequence[int]
) -> list[ArmStatistics]:
    """Statistics of every arm; `runs` has the records of each seed, in one order of seeds for all arms."""
    measures = {arm: _measures(seeds) for arm, seeds in runs.items()}
    return [
        ArmStatistics(
            arm=arm,
            against=against[arm],
            measures=measures[arm],
            accuracy_at={t: over_seeds(seeds, partial(at_round, t=t)) for t in at},
            rounds_to_target=over_seeds(seeds, lambda r: _reached(r, target, 0)),
            uplink_to_target=over_seeds(seeds, lambda r: _reached(r, target, 1)),
            tests={
                name: compared(spread.values, measures[against[arm]][name].values)
                for name, spread in measures[arm].items()
                if arm != against[arm] and name in measures[against[arm]]
            },
        )
        for arm, seeds in runs.items()
    ]


def default_target(runs: Mapping[str, Sequence[Records]]) -> float:
    """Nine tenths of the best final accuracy of all arms."""
    finals = [over_seeds(seeds, MEASURES["accuracy"].of) for seeds in runs.values()]
    return 0.9 * max((spread.mean for spread in finals if spread), default=0.0)


def default_rounds(rounds: int) -> tuple[int, ...]:
    """A sixth of the way, half of it, and the end."""
    return tuple(sorted({max(1, rounds // 6), max(1, rounds // 2), rounds}))


def over_seeds(seeds: Sequence[Records], measure: Callable[[Records], float | None]) -> Spread | None:
    values = tuple(map(measure, seeds))
    known = [value for value in values if value is not None]
    if not known:
        return None
    std = float(np.std(known, ddof=1)) if len(known) > 1 else 0.0
    return Spread(float(np.mean(known)), std, len(known), len(seeds), values)


def compared(mine: Sequence[float | None], theirs: Sequence[float | None]) -> Tested:
    """The difference of the means, and the tests; they say nothing where a seed is missing or there is no spread."""
    a, b = ([value for value in values if value is not None] for values in (mine, theirs))
    difference = float(np.mean(a) - np.mean(b))
    if not len(mine) == len(a) == len(b) == len(theirs) or len(a) < 2:
        return Tested(difference, None, None)
    apart = np.subtract(a, b)
    # A test on values without any spread divides by zero: it says nothing, so neither do we. The moments are taken
    # here, because scipy warns of values that are all alike, as the |S^f| of an arm without a filter is.
    n = len(a)
    welch = paired = None
    if np.ptp(a) + np.ptp(b) > 0:
        moments = (m for x in (a, b) for m in (np.mean(x), np.std(x, ddof=1), n))
        welch = float(stats.ttest_ind_from_stats(*moments, equal_var=False).pvalue)
    if np.ptp(apart) > 0:
        paired = float(2 * stats.t.sf(abs(difference) / (np.std(apart, ddof=1) / math.sqrt(n)), n - 1))
    return Tested(difference, welch, paired)


def _measures(seeds: Sequence[Records]) -> dict[str, Spread]:
    spreads = {name: over_seeds(seeds, measure.of) for name, measure in MEASURES.items()}
    return {name: spread for name, spread in spreads.items() if spread}


def _reached(records: Records, target: float, which: int) -> float | None:
    found = reached(records, target)
    return float(found[which]) if found else None
