"""The summary of a run."""

import math
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np

from filfl.runs.files import to_json
from filfl.runs.metrics import ACCURATE, Primary, own_metrics

LAST = 5
"""The final accuracy is the mean over this number of last tested rounds, because a single round is noisy."""
CLIENT_TESTS = "client_tests"
"""The entry of summary.json with the final model's accuracy on the test samples of each client: lists of their ids,
their numbers of test samples and their accuracies."""

Record = Mapping[str, Any]
Records = Sequence[Record]


def summarize(records: Records, stopped: str | None = None) -> dict[str, Any]:
    """The totals and final values of a run's records. `stopped`: why it ended before its last round, if it did."""
    return {
        "rounds": len(records),
        **({"stopped": stopped} if stopped is not None else {}),
        "final_accuracy": mean(records, itemgetter("test_accuracy"), LAST),
        "final_loss": mean(records, itemgetter("test_loss"), LAST),
        "final_metrics": {name: mean(records, Primary(name).of, LAST) for name in own_metrics(records)},
        "mean_filtered": mean(records, itemgetter("num_filtered")),
        **{key: sum(record[key] for record in records) for key in ("evaluations", "uplink_bytes", "downlink_bytes")},
        "refused": sum(len(record["refused"]) for record in records),
    }


def differences(summary: Record, records: Records) -> list[str]:
    """Where a stored summary does not agree with the records. Means may differ in the last digit between machines."""
    return [
        f"{key} is {to_json(summary.get(key))} in it, but {to_json(value)} by the records"
        for key, value in summarize(records).items()
        if not _agree(summary.get(key), value)
    ]


def _agree(stored: Any, value: Any) -> bool:
    if isinstance(stored, Mapping) and isinstance(value, Mapping):
        return stored.keys() == value.keys() and all(_agree(stored[key], value[key]) for key in value)
    if isinstance(stored, float) and isinstance(value, float):
        return math.isclose(stored, value, rel_tol=1e-9)
    return type(stored) is type(value) and bool(stored == value)


def mean(records: Records, of: Callable[[Record], float | None], last: int = 0) -> float | None:
    """The mean over the rounds that have the number, or over the last of them; 0 means all."""
    values = [value for value in map(of, records) if value is not None][-last:]
    return float(np.mean(values)) if values else None


def at_round(records: Records, t: int, primary: Primary = ACCURATE) -> float | None:
    """The primary metric in round t, or in the last tested round before it."""
    tested = [value for r in records if r["round"] <= t and (value := primary.of(r)) is not None]
    return tested[-1] if tested else None


def reached(records: Records, target: float, primary: Primary = ACCURATE) -> tuple[int, int] | None:
    """The first round whose primary metric reaches the target, and the uplink bytes up to that round."""
    sent = 0
    for record in records:
        sent += record["uplink_bytes"]
        if (value := primary.of(record)) is not None and primary.reaches(value, target):
            return record["round"], sent
    return None
