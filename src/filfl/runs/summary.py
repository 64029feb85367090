"""The summary of a run."""

from collections.abc import Mapping, Sequence
from typing import Any

LAST = 5
"""The final accuracy is the mean over this number of last tested rounds, because a single round is noisy."""


def summarize(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The totals and final values of a run's records."""
    return {
        "rounds": len(records),
        "final_accuracy": final(records, "test_accuracy"),
        "final_loss": final(records, "test_loss"),
        "mean_filtered": _mean([float(record["num_filtered"]) for record in records]),
        "evaluations": sum(record["evaluations"] for record in records),
        "uplink_bytes": sum(record["uplink_bytes"] for record in records),
        "downlink_bytes": sum(record["downlink_bytes"] for record in records),
        "refused": sum(len(record["refused"]) for record in records),
    }


def final(records: Sequence[Mapping[str, Any]], key: str) -> float | None:
    """The mean over the last tested rounds."""
    return _mean([record[key] for record in records if record[key] is not None][-LAST:])


def at_round(records: Sequence[Mapping[str, Any]], t: int) -> float | None:
    """The test accuracy in round t, or in the last tested round before it."""
    tested = [r["test_accuracy"] for r in records if r["round"] <= t and r["test_accuracy"] is not None]
    return tested[-1] if tested else None


def reached(records: Sequence[Mapping[str, Any]], target: float) -> tuple[int, int] | None:
    """The first round whose test accuracy is at least the target, and the uplink bytes up to that round."""
    sent = 0
    for record in records:
        sent += record["uplink_bytes"]
        if record["test_accuracy"] is not None and record["test_accuracy"] >= target:
            return record["round"], sent
    return None


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
