"""The performance targets of the project, as ratios within one run, and whether the stored figures meet them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import mean, median
from typing import Any

from peers import PEERS
from workloads import TITLES

Results = dict[str, Any]
Part = dict[str, Any]
IN_HALF = "exact DGF, bfloat16"
BASES = ("bare", "naive")
PEER_TITLES = {peer.title for peer in PEERS.values()}


@dataclass(frozen=True)
class Bar:
    """One target: the required value and the measured one."""

    what: str
    asked: str
    measured: float | None
    met: bool | None
    """None: not measured."""


def bars(results: Results) -> list[Bar]:
    """Every target, in order; `met` is None for one that was not measured."""
    return list(_bars(results))


def _bars(results: Results) -> Iterator[Bar]:
    W1, W2, W2_6, W3 = (results.get("training", {}).get(name, {}) for name in ("W1", "W2", "W2-6", "W3"))
    yield _at_least("W1: times faster than the bare loop", 3.5, lambda: baseline(W1) / seconds(W1["filfl"]))
    yield _at_least("W1: times faster than the fastest peer", 1.2, lambda: _peer(W1) / seconds(W1["filfl"]))
    yield _at_most("W2: time against the faster bare loop", 1.1, lambda: seconds(W2["filfl"]) / baseline(W2))
    yield _at_most("W2: time against the fastest peer", 1.1, lambda: seconds(W2["filfl"]) / _peer(W2))
    yield _at_most("W2: CPU time against the bare loop on one thread", 1.1, lambda: _cpu(W2))
    yield _at_least("W2 with 6 clients: share of the cores that is busy", 0.95, lambda: _busy(W2_6, results))
    yield _at_least("W3: times faster than the bare loop", 2.5, lambda: baseline(W3) / seconds(W3["filfl"]))
    yield _at_least("W3: times faster than the fastest peer", 1.5, lambda: _peer(W3) / seconds(W3["filfl"]))

    filters = results.get("filters", {})
    cnn, mlp = filters.get("cnn-2000", {}), filters.get("mlp-100", {})
    gap = results.get("gaps", {}).get("mean_gap", {})
    name = "exact DGF, LEAF CNN, n = 50, m = 2000"
    yield _at_least(f"{name}: times faster than the naive filter", 1.8, lambda: _faster(cnn, "exact DGF"))
    yield _at_least(f"{name}: share of the matrix-multiply peak", 0.8, lambda: _peak_share(cnn["exact DGF"]))
    yield _same(f"{name}: the naive filter's ids", cnn)
    yield _at_most(
        f"{name}: peak memory beyond the stack of n models, GB",
        1.0,
        lambda: (cnn["exact DGF"]["peak_bytes"] - cnn["exact DGF"]["stack_bytes"]) / 1e9,
    )
    yield _at_most(
        f"{name}, in bfloat16: time against float32", 0.55, lambda: seconds(cnn[IN_HALF]) / seconds(cnn["exact DGF"])
    )
    yield _at_least(f"{name}, in bfloat16: times faster than the naive filter", 5.5, lambda: _faster(cnn, IN_HALF))
    yield _same(f"{name}, in bfloat16: the naive filter's ids", cnn, IN_HALF)
    name = "exact DGF, MLP, n = 50, m = 100"
    yield _at_least(f"{name}: times faster than the naive filter", 12, lambda: _faster(mlp, "exact DGF"))
    yield _at_least(
        f"{name}: times faster than the naive filter with a loader's worker",
        100,
        lambda: _faster(mlp, "exact DGF", "naive, 1 loader worker"),
    )
    yield _same(f"{name}: the naive filter's ids", mlp)
    name = "ensemble local search, LEAF CNN, n = 50, m = 2000"
    search = "ensemble local search"
    yield _at_least(f"{name}: times faster than the naive filter", 3.5, lambda: _faster(cnn, search))
    yield _at_most(f"{name}: forward passes over V before verification", 50, lambda: cnn[search]["evaluations"])
    yield _at_most(
        "ensemble local search, n = 10: mean gap to the optimum against DGF's",
        0.25,
        lambda: gap["local-search"] / gap["dgf"],
    )
    million = results.get("million", {})
    yield _at_most("10^6 clients against 10^4: time of a round", 1.2, lambda: million["seconds_ratio"])
    yield _at_most("10^6 clients against 10^4: memory, data aside", 1.5, lambda: million["megabytes_ratio"])


def seconds(contender: Part) -> float:
    """The median seconds of a round; raises `KeyError` if the contender was skipped."""
    return float(median(contender["seconds"]))


def cpu_seconds(contender: Part) -> float:
    """The mean CPU seconds of a round."""
    return float(mean(contender["cpu_seconds"]))


def in_order(results: Results, section: str) -> dict[str, Part]:
    """The workloads of a section that were measured, in the order of the page."""
    return {name: results[section][name] for name in TITLES[section] if name in results.get(section, {})}


def baseline(part: Part) -> float:
    """The seconds that speeds are relative to: those of the faster bare loop or of the naive filter, or of the fastest
    contender if neither ran."""
    timed = {who: seconds(part[who]) for who in part if "seconds" in part[who]}
    return min([took for who, took in timed.items() if who.startswith(BASES)] or timed.values())


def _peer(workload: Part) -> float:
    return min(seconds(workload[name]) for name in PEER_TITLES & workload.keys() if "seconds" in workload[name])


def _cpu(workload: Part) -> float:
    return cpu_seconds(workload["filfl"]) / cpu_seconds(workload["bare, 1 thread"])


def _busy(workload: Part, results: Results) -> float:
    ours = workload["filfl"]
    return float(sum(ours["cpu_seconds"]) / sum(ours["seconds"]) / results["machine"]["cores"])


def _faster(case: Part, who: str, than: str = "naive") -> float:
    return seconds(case[than]) / seconds(case[who])


def _peak_share(exact: Part) -> float:
    """Relative to matrix products just before and after each filtering, since the speed of the machine varies."""
    return float(exact["flop"] / seconds(exact) / 1e9 / exact["matrix_gflops"])


def _same(what: str, case: Part, ours: str = "exact DGF") -> Bar:
    kept = [case.get(who, {}).get("kept") for who in ("naive", ours)]
    same = None if None in kept else kept[0] == kept[1]
    return Bar(what, "the same", None if same is None else float(same), same)


def _at_least(what: str, asked: float, measure: Callable[[], float]) -> Bar:
    value = _try(measure)
    return Bar(what, f"at least {asked:g}", value, None if value is None else value >= asked)


def _at_most(what: str, asked: float, measure: Callable[[], float]) -> Bar:
    value = _try(measure)
    return Bar(what, f"at most {asked:g}", value, None if value is None else value <= asked)


def _try(measure: Callable[[], float]) -> float | None:
    """None if a required figure is missing."""
    try:
        return measure()
    except (KeyError, ValueError, ZeroDivisionError):
        return None
