"""The measures of a run: each reduces the run's records to one number."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from scipy import optimize

from filfl.runs.metrics import ACCURACY, ACCURATE, LOSS, Primary, own_metrics
from filfl.runs.reader import Run
from filfl.runs.summary import LAST, Record, Records, mean


@dataclass(frozen=True)
class Measure:
    """One number per run, and how it is shown."""

    heading: str
    of: Callable[[Records], float | None]
    form: str = "{:.3f}"

    @property
    def title(self) -> str:
        """The heading on one line."""
        return " ".join(self.heading.split())


def metric_of(record: Record, name: str) -> float | None:
    """A metric of the test; None if the record does not have it."""
    value: float | None = record.get("metrics", {}).get(name)
    return value


def ratio_of(record: Record) -> float | None:
    """R(S^f) / R(OPT) of a filter round in which the optimum was computed."""
    best, found = record.get("reward_optimum"), record.get("reward_filtered")
    return None if best is None or found is None or best <= 0 else float(found / best)


def gap_of(record: Record) -> float | None:
    """Loss of S^f minus loss of the best set. R is a constant minus the loss, so it is a difference of rewards."""
    return _difference(record.get("reward_optimum"), record.get("reward_filtered"))


def honest_gain_of(record: Record) -> float | None:
    """Loss of the mean of all clients minus loss of S^f, on samples of V that were not used to choose S^f."""
    gain: float | None = record.get("honest_gain")
    return gain


def gain_on_V_of(record: Record) -> float | None:
    """delta_t on the filtering set: loss of the mean of all clients that trained, minus loss of the mean of S^f. The
    set was chosen on the same samples, so it is optimistic. By the surrogate where the true reward is not known."""
    true = _difference(record.get("reward_filtered"), record.get("reward_all"))
    return _difference(record.get("surrogate_filtered"), record.get("surrogate_all")) if true is None else true


def neighbourhood(records: Records) -> float | None:
    """c of the fit a / t + c (a, c >= 0) to the squared distance from the optimum, with least relative errors."""
    t, d = _distances(records)
    if len(t) < 2:
        return None
    (_, c), _ = optimize.nnls(np.column_stack([1 / t, np.ones_like(t)]) / d[:, None], np.ones_like(t))
    return float(c)


def rate(records: Records) -> float | None:
    """Slope of log squared distance over log round: -1 if the distance falls as 1 / t."""
    t, d = _distances(records)
    return float(np.polyfit(np.log(t), np.log(d), 1)[0]) if len(t) > 1 else None


def _distances(records: Records) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Rounds and squared distances, without the first tenth of the rounds, which depends on the initial weights."""
    first = len(records) / 10
    known = [(r["round"], metric_of(r, "distance")) for r in records if r["round"] > first]
    t, d = np.array([(t, d) for t, d in known if d], dtype=np.float64).reshape(-1, 2).T
    return t, d


def _kept(record: Record) -> float | None:
    return record["num_filtered"] / record["num_available"] if record.get("num_available") else None


def _difference(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a - b


def _mean(of: Callable[[Record], float | None]) -> Callable[[Records], float | None]:
    return partial(mean, of=of)


def _final(of: Callable[[Record], float | None]) -> Callable[[Records], float | None]:
    return partial(mean, of=of, last=LAST)


def _last(of: Callable[[Record], float | None]) -> Callable[[Records], float | None]:
    """The last round that has the number."""
    return lambda records: next((value for value in map(of, reversed(records)) if value is not None), None)


MEASURES = {
    "accuracy": Measure("final\naccuracy", _final(lambda r: r["test_accuracy"])),
    "mean-accuracy": Measure("mean\naccuracy", _mean(lambda r: r["test_accuracy"])),
    "test-loss": Measure("test\nloss", _final(lambda r: r["test_loss"])),
    "selected-train-loss": Measure("train loss,\nselected", _final(lambda r: r.get("selected_train_loss"))),
    "global-train-loss": Measure("train loss,\nall", _final(lambda r: metric_of(r, "global_train_loss"))),
    "client-accuracy": Measure("mean over\nclients", _final(lambda r: metric_of(r, "client_accuracy"))),
    "worst-tenth": Measure("worst\ntenth", _final(lambda r: metric_of(r, "worst_tenth"))),
    "filtered": Measure("|S^f|", _mean(lambda r: float(r["num_filtered"])), "{:.1f}"),
    "kept": Measure("kept", _mean(_kept), "{:.2f}"),
    "gain": Measure("gain\nin loss", _mean(honest_gain_of), "{:.4f}"),
    "gain-on-v": Measure("gain on\nV itself", _mean(gain_on_V_of), "{:.4f}"),
    "ratio": Measure("ratio to\noptimum", _mean(ratio_of), "{:.4f}"),
    "gap": Measure("gap\nin loss", _mean(gap_of), "{:.4f}"),
    "auc": Measure("AUC of\nvalues", _last(lambda r: metric_of(r, "value_auc"))),
    "distance": Measure("squared\ndistance", _final(lambda r: metric_of(r, "distance")), "{:.2e}"),
    "neighbourhood": Measure("neigh-\nbourhood", neighbourhood, "{:.2e}"),
    "rate": Measure("slope", rate, "{:.2f}"),
    "uplink": Measure("uplink\nMB", lambda rs: sum(r["uplink_bytes"] for r in rs) / 1e6 if rs else None, "{:.1f}"),
}
"""By name. Accuracies, losses and the distance are final values; the others are means over rounds that have them."""

OWN = "metrics."
"""Before the name of a user's own metric: metrics.f1."""
KEYS = {LOSS: "test-loss", "client_accuracy": "client-accuracy", "worst_tenth": "worst-tenth", "distance": "distance"}
SHARES = ("accuracy", "client-accuracy", "worst-tenth")
"""Measures that are shown in percent."""


def measure_named(key: str) -> Measure:
    """One of `MEASURES`, or the final value of a user's own metric."""
    if key in MEASURES:
        return MEASURES[key]
    name = key.removeprefix(OWN)
    return Measure(f"final\n{name}", _final(lambda r: metric_of(r, name)), "{:.4g}")


def measure_keys(runs: Iterable[Records]) -> list[str]:
    """Every measure that these runs may have: the accuracy, the user's own metrics, then the others."""
    own = dict.fromkeys(name for records in runs for name in own_metrics(records))
    first, *others = MEASURES
    return [first, *(OWN + name for name in own), *others]


def key_of(primary: Primary) -> str:
    """The measure that is the final value of the primary metric."""
    return ACCURACY if primary.name == ACCURACY else KEYS.get(primary.name, OWN + primary.name)


def primary_of(runs: Iterable[Run]) -> Primary:
    """The primary metric that the config of the first run names; otherwise the accuracy, or the loss if there is no
    accuracy."""
    runs = list(runs)
    named = runs[0].table.get("evaluate") if runs else None
    if isinstance(named, Mapping) and isinstance(named.get("primary"), str):
        return Primary.named(named["primary"], named.get("better"))
    records = [record for run in runs for record in run.records]
    losses = all(r["test_accuracy"] is None for r in records) and any(r["test_loss"] is not None for r in records)
    return Primary.named(LOSS) if losses else ACCURATE
