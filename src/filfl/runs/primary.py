"""The primary metric of a run: by which number runs are judged, and whether higher or lower is better."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

ACCURACY, LOSS = "accuracy", "loss"
LOWER_IS_BETTER = (LOSS, "distance")
"""Built-in metrics of which lower values are better."""


@dataclass(frozen=True)
class Primary:
    """A metric of the test: accuracy, loss, or an entry of `metrics` in the records."""

    name: str = ACCURACY
    lower: bool = False
    """Whether lower values are better."""

    @classmethod
    def named(cls, name: str, better: str | None = None) -> "Primary":
        """better: "higher" or "lower"; None is lower for a loss or a distance, and higher for everything else."""
        return cls(name, name in LOWER_IS_BETTER if better is None else better == "lower")

    def of(self, record: Mapping[str, Any]) -> float | None:
        """Its value in a record; None if the round was not tested, or if the value is not finite."""
        fields = {ACCURACY: "test_accuracy", LOSS: "test_loss"}
        value: Any = record[fields[self.name]] if self.name in fields else record["metrics"].get(self.name)
        return float(value) if isinstance(value, int | float) else None

    def is_better(self, value: float, other: float) -> bool:
        return value < other if self.lower else value > other

    def reaches(self, value: float, target: float) -> bool:
        return value == target or self.is_better(value, target)

    def best(self, values: Iterable[float]) -> float:
        return min(values) if self.lower else max(values)
