"""The metrics in the records of a run: the user's own ones, and the primary one, by which runs are judged."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

ACCURACY, LOSS = "accuracy", "loss"
ACCURACY_NAMES = (ACCURACY, "test_accuracy", "test-accuracy", "eval_acc", "acc")
LOSS_NAMES = (LOSS, "test_loss", "test-loss", "eval_loss")
"""The names that evaluation functions use for these two."""
GLOBAL_TRAIN_LOSS = "global_train_loss"
"""F(w_t): the loss of the global model on the training samples of all clients, or a fixed sample of them."""
MEASURED = ("distance", "filtering_gap", "filter_shift", "filter_bias", "value_auc", GLOBAL_TRAIN_LOSS)
"""Metrics that a run measures by itself."""
ATTACK_SUCCESS = "attack_success"
"""The metric of an attack with an aim, such as a backdoor. Tables show it like the metrics of a user."""
LOWER_IS_BETTER = (LOSS, "distance", GLOBAL_TRAIN_LOSS, ATTACK_SUCCESS)


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
        metrics = record.get("metrics", {})
        value: Any = record[fields[self.name]] if self.name in fields else metrics.get(self.name)
        return float(value) if isinstance(value, int | float) else None

    def is_better(self, value: float, other: float) -> bool:
        return value < other if self.lower else value > other

    def reaches(self, value: float, target: float) -> bool:
        return value == target or self.is_better(value, target)


ACCURATE = Primary()


def own_metrics(records: Iterable[Mapping[str, Any]]) -> list[str]:
    """The names of the metrics that filfl does not know, in the order in which they appear."""
    known = {*ACCURACY_NAMES, *LOSS_NAMES, *MEASURED, "client_accuracy", "worst_tenth"}
    names = dict.fromkeys(name for record in records for name in record.get("metrics", {}))
    return [name for name in names if name not in known]
