"""What happened over the rounds: mean and standard deviation over the seeds, round by round."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from filfl.report.measures import gain_of, gap_of, metric_of, ratio_of
from filfl.runs import Run


@dataclass(frozen=True)
class Curve:
    """What one picture shows of a run's records."""

    title: str
    of: Callable[[Mapping[str, Any], Run], float | None]
    from_zero: bool = False
    steps: bool = False
    logarithmic: bool = False


@dataclass(frozen=True)
class Series:
    """A curve of one arm."""

    rounds: tuple[int, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]


def _noisy_share(record: Mapping[str, Any], run: Run) -> float | None:
    noisy = run.clients.noisy[run.may_be_chosen(record)] if run.clients.noisy.any() else ()
    return 100 * float(np.mean(noisy)) if len(noisy) else None


CURVES = {
    "accuracy": Curve("Test accuracy", lambda record, run: record["test_accuracy"]),
    "test-loss": Curve("Test loss", lambda record, run: record["test_loss"]),
    "train-loss": Curve("Train loss", lambda record, run: record["train_loss"]),
    "filtered": Curve(
        "Clients in $S^f$", lambda record, run: float(record["num_filtered"]), from_zero=True, steps=True
    ),
    "noisy": Curve("Bad clients in $S^f$ (% of its clients)", _noisy_share, from_zero=True, steps=True),
    "ratio": Curve("Reward of $S^f$ / reward of the best set", lambda record, run: ratio_of(record)),
    "gap": Curve("Loss of $S^f$ - loss of the best set", lambda record, run: gap_of(record), from_zero=True),
    "gain": Curve("Loss of everybody - loss of $S^f$", lambda record, run: gain_of(record)),
    "distance": Curve(
        "Squared distance to the optimum", lambda record, run: metric_of(record, "distance"), logarithmic=True
    ),
}


def series_of(curve: Curve, seeds: Sequence[Run]) -> Series | None:
    """The curve over the runs of an arm; None where they have nothing of it."""
    values: dict[int, list[float]] = defaultdict(list)
    for run in seeds:
        for record in run.records:
            if (value := curve.of(record, run)) is not None:
                values[record["round"]].append(value)
    rounds = tuple(sorted(values))
    mean = tuple(float(np.mean(values[t])) for t in rounds)
    std = tuple(float(np.std(values[t], ddof=1)) if len(values[t]) > 1 else 0.0 for t in rounds)
    return Series(rounds, mean, std) if rounds else None


def thinned(series: Series, most: int) -> Series:
    """At most so many points of it, evenly, with the first and the last; four digits each."""
    places = np.unique(np.linspace(0, len(series.rounds) - 1, most).round().astype(int))
    return Series(
        tuple(series.rounds[i] for i in places),
        tuple(float(f"{series.mean[i]:.4g}") for i in places),
        tuple(float(f"{series.std[i]:.4g}") for i in places),
    )
