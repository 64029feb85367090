"""End a run before its last round: by a callback that returns `STOP`, or by `EarlyStopping`."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from filfl.config.schema import unknown_name
from filfl.core.server import State
from filfl.errors import ConfigError
from filfl.runs.callbacks import RunStart, Stop
from filfl.runs.metrics import ACCURACY, LOSS, Primary


@dataclass(frozen=True)
class EarlyStopping:
    """A callback that ends the run once a metric has not improved for `patience` tests in a row.

    metric: "accuracy", "loss" (that of the test), or the name of another metric in the records; by default the primary
        metric of the config, or else the accuracy.
    better: "higher" or "lower"; by default that of the primary metric, or else lower for a loss and higher otherwise.
    min_change: by how much a value must be better than the best one so far.
    """

    metric: str | None = None
    patience: int = 5
    better: Literal["higher", "lower"] | None = None
    min_change: float = 0.0

    def __post_init__(self) -> None:
        if type(self.patience) is not int or self.patience < 1:
            raise ConfigError(f"EarlyStopping: patience must be a whole number of at least 1 (got {self.patience!r})")
        if self.better not in (None, "higher", "lower"):
            raise ConfigError(f'EarlyStopping: better must be "higher" or "lower" (got {self.better!r})')
        if not self.min_change >= 0:
            raise ConfigError(f"EarlyStopping: min_change must be a number of at least 0 (got {self.min_change!r})")

    @contextmanager
    def follow(self, run: RunStart) -> Iterator[Callable[[Mapping[str, Any], State | None], Stop | None]]:
        """A callback for one run. The rounds before a resume count too."""
        options = run.config.evaluate
        name = self.metric or options.primary or ACCURACY
        metric = Primary.named(name, self.better or (options.better if name == options.primary else None))
        best, best_round, without = None, 0, 0

        def watch(record: Mapping[str, Any], state: State | None) -> Stop | None:
            nonlocal best, best_round, without
            t = record["round"]
            if (t % options.every and t != run.config.rounds) or not _is_tested(record):
                return None
            value = metric.of(record)
            if value is None and name not in (known := _metrics_in(record)):
                raise ConfigError(unknown_name("EarlyStopping: the metric", name, known))
            margin = self.min_change if metric.lower else -self.min_change
            if value is not None and (best is None or metric.is_better(value + margin, best)):
                best, best_round, without = value, t, 0
                return None
            without += 1
            if without < self.patience:
                return None
            reached = f"best {best:.4g} in round {best_round}" if best is not None else "never a finite value"
            tests = "test" if without == 1 else "tests"
            return Stop(f"{name} did not improve for {without} {tests} ({reached})")

        for record in run.records:
            watch(record, None)
        yield watch


def _is_tested(record: Mapping[str, Any]) -> bool:
    """Whether the round has test results. On Flower, the server's function may test some of the rounds only."""
    return bool(record["metrics"]) or record["test_loss"] is not None


def _metrics_in(record: Mapping[str, Any]) -> list[str]:
    return sorted({LOSS, *record["metrics"], *([ACCURACY] if record["test_accuracy"] is not None else [])})
