"""The lines of the charts: means and deviations over the seeds, and accuracy against what was sent for it."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from itertools import accumulate
from typing import Any

import numpy as np

from filfl.report.collect import ArmRuns, Section
from filfl.report.presence import may_be_chosen
from filfl.report.stored import StoredRun

Line = dict[str, list[float | None]]
"""x, mean and std, in that order of rounds."""
Value = Callable[[Mapping[str, Any]], float | None]


def curves(section: Section) -> dict[str, list[Line]]:
    """For every chart one line an arm, in the order of the arms."""
    noisy = any(run.clients is not None and run.clients.noisy.any() for run in section.begun)
    made = {
        key: [over_rounds(arm, _recorded(key)) for arm in section.arms]
        for key in ("test_accuracy", "test_loss", "train_loss", "num_filtered")
    }
    if noisy:
        made["noisy"] = [over_rounds(arm, _noisy_share) for arm in section.arms]
    made["uplink"] = [against_uplink(arm) for arm in section.arms]
    return made


def over_rounds(arm: ArmRuns, value_of: Callable[[StoredRun], Value]) -> Line:
    """Mean and deviation over the seeds, for the rounds in which there is a value."""
    values: dict[int, list[float]] = defaultdict(list)
    for run in arm.begun:
        value = value_of(run)
        for record in run.records:
            if (found := value(record)) is not None:
                values[record["round"]].append(found)
    rounds = sorted(values)
    return _line(rounds, [values[t] for t in rounds])


def against_uplink(arm: ArmRuns) -> Line:
    """Accuracy over the megabytes that the clients had sent by then, both as means over the seeds."""
    sent: dict[int, list[float]] = defaultdict(list)
    for run in arm.begun:
        for record, total in zip(run.records, accumulate(r["uplink_bytes"] for r in run.records), strict=True):
            if record["test_accuracy"] is not None:
                sent[record["round"]].append(total / 1e6)
    accuracy = over_rounds(arm, _recorded("test_accuracy"))
    return {**accuracy, "x": [_short(float(np.mean(sent[t]))) for t in sorted(sent)]}


def _recorded(key: str) -> Callable[[StoredRun], Value]:
    """A number of the record as it is."""

    def value(record: Mapping[str, Any]) -> float | None:
        found: float | None = record[key]
        return found

    return lambda run: value


def _noisy_share(run: StoredRun) -> Value:
    """The percentage of clients with random labels among those that may be chosen."""

    def share(record: Mapping[str, Any]) -> float | None:
        if run.clients is None or (ids := may_be_chosen(record, len(run.clients))) is None or not len(ids):
            return None
        return 100 * float(run.clients.noisy[ids[ids < len(run.clients)]].mean())

    return share


def _line(x: list[int], values: list[list[float]]) -> Line:
    std = [float(np.std(v, ddof=1)) if len(v) > 1 else 0.0 for v in values]
    return {"x": list(x), "mean": [_short(float(np.mean(v))) for v in values], "std": [_short(s) for s in std]}


def _short(value: float) -> float:
    """Five digits: more than a screen has pixels."""
    return float(f"{value:.5g}")
