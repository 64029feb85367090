"""The numbers of a comparison: means, deviations and tests over seeds."""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from scipy import stats

from filfl.runs.summary import at_round, final, reached

Records = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation over the seeds, and over how many of them."""

    mean: float
    std: float
    count: int
    of: int


@dataclass(frozen=True)
class ArmStatistics:
    """What a comparison says about one arm."""

    arm: str
    against: str
    final_accuracy: Spread | None
    final_loss: Spread | None
    final_train_loss: Spread | None
    client_accuracy: Spread | None
    """The mean over the clients of their own test accuracy, where test samples have owners; at the end."""
    worst_tenth: Spread | None
    """The same over the tenth of the clients with the lowest."""
    accuracy_at: dict[int, Spread | None]
    rounds_to_target: Spread | None
    uplink_to_target: Spread | None
    """In bytes; over the seeds that reached the target."""
    total_uplink: Spread | None
    """In bytes, over the whole run."""
    mean_filtered: Spread | None
    welch_p: float | None
    """Two-sided p of Welch's t-test on the final accuracies against the other arm; None where it says nothing."""
    paired_p: float | None
    """The same of the paired test, seed by seed: the arms of a seed share split, availability and start."""


def compare_arms(
    runs: Mapping[str, Sequence[Records]], against: Mapping[str, str], target: float, at: Sequence[int]
) -> list[ArmStatistics]:
    """Statistics of every arm; `runs` has the records of each seed, in one order of seeds for all arms."""
    return [
        ArmStatistics(
            arm=arm,
            against=against[arm],
            final_accuracy=_over(seeds, lambda r: final(r, "test_accuracy")),
            final_loss=_over(seeds, lambda r: final(r, "test_loss")),
            final_train_loss=_over(seeds, lambda r: final(r, "train_loss")),
            client_accuracy=_over(seeds, lambda r: _final_metric(r, "client_accuracy")),
            worst_tenth=_over(seeds, lambda r: _final_metric(r, "worst_tenth")),
            accuracy_at={t: _over(seeds, partial(at_round, t=t)) for t in at},
            rounds_to_target=_over(seeds, lambda r: _reached(r, target, 0)),
            uplink_to_target=_over(seeds, lambda r: _reached(r, target, 1)),
            total_uplink=_over(seeds, lambda r: float(sum(record["uplink_bytes"] for record in r)) if r else None),
            mean_filtered=_over(seeds, lambda r: float(np.mean([x["num_filtered"] for x in r])) if r else None),
            **_tests(seeds, runs[against[arm]], arm == against[arm]),
        )
        for arm, seeds in runs.items()
    ]


def default_target(runs: Mapping[str, Sequence[Records]]) -> float:
    """Nine tenths of the best final accuracy of all arms."""
    finals = [_over(seeds, lambda r: final(r, "test_accuracy")) for seeds in runs.values()]
    return 0.9 * max((spread.mean for spread in finals if spread), default=0.0)


def default_rounds(rounds: int) -> tuple[int, ...]:
    """A sixth of the way, half of it, and the end."""
    return tuple(sorted({max(1, rounds // 6), max(1, rounds // 2), rounds}))


def _over(seeds: Sequence[Records], measure: Callable[[Records], float | None]) -> Spread | None:
    values = [value for value in map(measure, seeds) if value is not None]
    if not values:
        return None
    std = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    return Spread(float(np.mean(values)), std, len(values), len(seeds))


def _final_metric(records: Records, name: str) -> float | None:
    return final([record["metrics"] for record in records if name in record["metrics"]], name)


def _reached(records: Records, target: float, which: int) -> float | None:
    found = reached(records, target)
    return float(found[which]) if found else None


def _tests(mine: Sequence[Records], theirs: Sequence[Records], same: bool) -> dict[str, float | None]:
    finals = [(final(a, "test_accuracy"), final(b, "test_accuracy")) for a, b in zip(mine, theirs, strict=True)]
    pairs = np.array([(a, b) for a, b in finals if a is not None and b is not None])
    if same or len(pairs) < max(2, len(mine)):
        return {"welch_p": None, "paired_p": None}
    a, b = pairs.T
    # A test on values without any spread divides by zero: it says nothing, so neither do we.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # that one of the two has no spread, which is no mistake
        welch = stats.ttest_ind(a, b, equal_var=False).pvalue if np.ptp(a) + np.ptp(b) > 0 else math.nan
        paired = stats.ttest_rel(a, b).pvalue if np.ptp(a - b) > 0 else math.nan
    return {"welch_p": _number(welch), "paired_p": _number(paired)}


def _number(p: float) -> float | None:
    return float(p) if math.isfinite(p) else None
