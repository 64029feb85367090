"""Curves over the rounds: mean and standard deviation over the seeds, per round."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from filfl.report.measures import (
    KEYS,
    OWN,
    gain_on_V_of,
    gap_of,
    honest_gain_of,
    key_of,
    measure_keys,
    metric_of,
    ratio_of,
)
from filfl.report.statistics import standard_deviation
from filfl.runs.metrics import ACCURATE, Primary
from filfl.runs.reader import Run
from filfl.runs.summary import Record


@dataclass(frozen=True)
class Curve:
    """A number per round, and how it is drawn."""

    title: str
    of: Callable[[Record, Run], float | None]
    from_zero: bool = False
    steps: bool = False
    logarithmic: bool = False


@dataclass(frozen=True)
class Series:
    """A curve of one arm."""

    rounds: tuple[int, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]


def _bad_share(record: Record, run: Run) -> float | None:
    bad = run.clients.noisy if run.clients else np.zeros(0, dtype=bool)
    pool = run.may_be_chosen(record) if bad.any() else np.empty(0, dtype=np.int64)
    known = pool[pool < len(bad)]  # a client that joined later may not be in clients.csv yet
    return 100 * float(np.mean(bad[known])) if len(known) else None


CURVES = {
    "accuracy": Curve("Test accuracy", lambda record, run: record["test_accuracy"]),
    "test-loss": Curve("Test loss", lambda record, run: record["test_loss"]),
    "selected-train-loss": Curve(
        "Train loss of the selected clients", lambda record, run: record["selected_train_loss"]
    ),
    "global-train-loss": Curve(
        "Train loss over all clients", lambda record, run: metric_of(record, "global_train_loss")
    ),
    "filtered": Curve(
        "Clients in $S^f$", lambda record, run: float(record["num_filtered"]), from_zero=True, steps=True
    ),
    "noisy": Curve("Bad clients in $S^f$ (% of its clients)", _bad_share, from_zero=True, steps=True),
    "ratio": Curve("Reward of $S^f$ / reward of the best set", lambda record, run: ratio_of(record)),
    "gap": Curve("Loss of $S^f$ - loss of the best set", lambda record, run: gap_of(record), from_zero=True),
    "gain": Curve("Gain in loss (cross-fitted)", lambda record, run: honest_gain_of(record)),
    "gain-on-v": Curve("Gain on V itself", lambda record, run: gain_on_V_of(record)),
    "distance": Curve(
        "Squared distance to the optimum", lambda record, run: metric_of(record, "distance"), logarithmic=True
    ),
}


def curve_named(key: str) -> Curve:
    """One of `CURVES`, or that of a metric of the test."""
    if key in CURVES:
        return CURVES[key]
    names = {measure: metric for metric, measure in KEYS.items()}
    name = names.get(key, key.removeprefix(OWN))
    return Curve(f"Test {name.replace('_', ' ')}", lambda record, run: metric_of(record, name))


def curve_keys(runs: Iterable[Run], primary: Primary) -> list[str]:
    """Every curve that these runs may have: that of the primary metric, the accuracy, own metrics, then the others."""
    own = [key for key in measure_keys(run.records for run in runs) if key.startswith(OWN)]
    return list(dict.fromkeys([key_of(primary), "accuracy", *own, *CURVES]))


def series_of(curve: Curve, runs: Sequence[Run]) -> Series | None:
    """The curve over the runs of an arm, for the rounds that have a value; None if no round has one."""
    values: dict[int, list[float]] = defaultdict(list)
    for run in runs:
        for record in run.records:
            if (value := curve.of(record, run)) is not None:
                values[record["round"]].append(value)
    rounds = tuple(sorted(values))
    mean = tuple(float(np.mean(values[t])) for t in rounds)
    return Series(rounds, mean, tuple(standard_deviation(values[t]) for t in rounds)) if rounds else None


def uploaded(runs: Sequence[Run], primary: Primary = ACCURATE) -> list[float]:
    """The megabytes that the clients had sent by each tested round: mean over the runs."""
    sent: dict[int, list[float]] = defaultdict(list)
    for run in runs:
        for record, total in zip(run.records, accumulate(r["uplink_bytes"] for r in run.records), strict=True):
            if primary.of(record) is not None:
                sent[record["round"]].append(total / 1e6)
    return [float(np.mean(sent[t])) for t in sorted(sent)]


def thinned(series: Series, most: int) -> Series:
    """At most `most` points at equal distances, with the first and the last, rounded to four digits."""
    places = np.unique(np.linspace(0, len(series.rounds) - 1, most).round().astype(int))
    mean, std = (tuple(rounded(values[i], 4) for i in places) for values in (series.mean, series.std))
    return Series(tuple(series.rounds[i] for i in places), mean, std)


def rounded(value: float, digits: int) -> float:
    """A number with so many significant digits."""
    return float(f"{value:.{digits}g}")
