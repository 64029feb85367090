"""Robust means: equal to those of ByzFL, and laws that hold for all of them."""

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given
from numpy.typing import NDArray

from filfl.aggregation import AGGREGATIONS, Admitted, Memory
from filfl.aggregation.before import buckets, nearest_neighbours
from filfl.aggregation.clipping import CenteredClipping, NormClipping
from filfl.aggregation.geometric_median import GeometricMedian
from filfl.aggregation.krum import Krum, MultiKrum
from filfl.aggregation.median import Median
from filfl.aggregation.robust import Robust
from filfl.aggregation.stack import Stack
from filfl.aggregation.trimmed_mean import TrimmedMean
from filfl.data.split import floored
from filfl.weights import Weights

Rows = NDArray[np.float64]
NO_INTEGERS = torch.empty(0, dtype=torch.int64)
ROBUST = {name: kind for name, kind in AGGREGATIONS.items() if issubclass(kind, Robust)}


def weights(vector: Any) -> Weights:
    return Weights(torch.as_tensor(np.asarray(vector), dtype=torch.float64), NO_INTEGERS)


def combine(mean: Robust, rows: Rows, w_t: Any = None, memory: Memory | None = None) -> tuple[Memory, Rows]:
    """The memory after a round, and the new model, for clients that send w_t plus these rows."""
    start = weights(np.zeros(rows.shape[1]) if w_t is None else w_t)
    updates = [Admitted(weights(start.vector.numpy() + row), 1, 0.0) for row in rows]
    memory, w = mean(1, memory or {}, start, updates)
    return memory, w.vector.numpy()


@pytest.fixture(scope="module")
def byzfl() -> Iterator[Callable[[str], ModuleType]]:
    """The modules of ByzFL. Its package imports torchvision, which its aggregators do not need."""
    spec = importlib.util.find_spec("byzfl")
    if spec is None or spec.submodule_search_locations is None:
        pytest.skip("ByzFL is not installed: pip install --no-deps byzfl")
    package = ModuleType("byzfl")
    package.__path__ = list(spec.submodule_search_locations)
    sys.modules["byzfl"] = package
    yield lambda name: importlib.import_module(f"byzfl.{name}")
    for name in [name for name in sys.modules if name.partition(".")[0] == "byzfl"]:
        del sys.modules[name]


def stacks(number: int) -> Iterator[tuple[Rows, float]]:
    """Random stacks, and stacks with clients that collude, repeat or are far away; with the share of bad clients."""
    rng = np.random.default_rng(0)
    for i in range(number):
        n, d = int(rng.integers(3, 13)), int(rng.integers(1, 30))
        rows = rng.normal(size=(n, d)) * 10.0 ** rng.integers(-3, 3)
        bad = float(rng.uniform(0, 0.49))
        f = floored(bad, n)
        match i % 5:
            case 1:
                rows[:f] = rows[f:].mean(axis=0) - 1.5 * rows[f:].std(axis=0)  # a little is enough
            case 2:
                rows[:f] *= 1e6
            case 3:
                rows[:f] = -0.5 * rows[f:].mean(axis=0)  # the opposite inner product
            case 4:
                rows += 10.0 * rng.normal(size=d)
        yield rows, bad


def referees(module: ModuleType, f: int) -> dict[str, tuple[Any, Callable[[float], Robust]]]:
    return {
        "median": (module.Median(), lambda bad: Median(bad=bad)),
        "trimmed-mean": (module.TrMean(f), lambda bad: TrimmedMean(bad=bad)),
        "krum": (module.Krum(f), lambda bad: Krum(bad=bad)),
        "multi-krum": (module.MultiKrum(f), lambda bad: MultiKrum(bad=bad)),
        "geometric-median": (module.GeometricMedian(0.1, 3), lambda bad: GeometricMedian(bad=bad)),
        "centered-clipping": (
            module.CenteredClipping(None, 2, 0.5),
            lambda bad: CenteredClipping(bad=bad, radius=0.5, steps=2),
        ),
    }


def test_every_mean_equals_that_of_byzfl(byzfl: Callable[[str], ModuleType]) -> None:
    module = byzfl("aggregators.aggregators")
    for rows, bad in stacks(1000):
        for name, (theirs, ours) in referees(module, floored(bad, len(rows))).items():
            expected, (_, found) = theirs(rows.copy()), combine(ours(bad), rows)
            scale = np.abs(rows).max()
            np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6 * scale, err_msg=name)


def test_mixing_and_buckets_equal_those_of_byzfl(byzfl: Callable[[str], ModuleType]) -> None:
    module = byzfl("aggregators.preaggregators")
    for rows, bad in stacks(300):
        f = floored(bad, len(rows))
        updates = [Admitted(weights(row), 1, 0.0) for row in rows]
        mixed = nearest_neighbours(Stack.of(updates, weights(np.zeros(rows.shape[1]))), f, 1)
        np.testing.assert_allclose(
            (mixed.mix.numpy() @ rows), module.NNM(f)(rows.copy()), rtol=1e-6, atol=1e-6 * np.abs(rows).max()
        )
        np.random.seed(1)  # noqa: NPY002  ByzFL draws from the global generator
        theirs = module.Bucketing(2)(rows.copy())
        np.random.seed(1)  # noqa: NPY002
        order = np.random.permutation(len(rows))  # noqa: NPY002
        np.testing.assert_allclose(buckets(torch.from_numpy(order)).numpy() @ rows, theirs, rtol=1e-9, atol=1e-9)


# Laws. `rows` are small whole numbers, so that sums and comparisons are exact.

small = st.integers(-8, 8)


def matrices(at_least: int) -> st.SearchStrategy[list[list[int]]]:
    return st.integers(1, 6).flatmap(
        lambda d: st.lists(st.lists(small, min_size=d, max_size=d), min_size=at_least, max_size=9)
    )


names = st.sampled_from(sorted(ROBUST))
befores = st.sampled_from(["none", "nnm"])


@given(name=names, before=befores, rows=matrices(5), bad=st.sampled_from([0.0, 0.2, 0.4]), shift=small)
def test_the_order_of_the_clients_and_the_model_do_not_matter(
    name: str, before: Any, rows: list[list[int]], bad: float, shift: int
) -> None:
    table = np.array(rows, dtype=np.float64)
    table += np.random.default_rng(0).normal(size=table.shape) * 1e-3  # without ties, as Krum has with fewer clients
    mean = ROBUST[name](bad=bad, before=before)
    _, here = combine(mean, table)
    _, reversed_order = combine(mean, table[::-1])
    _, elsewhere = combine(mean, table, w_t=np.full(table.shape[1], float(shift)))
    np.testing.assert_allclose(here, reversed_order, atol=1e-9)
    np.testing.assert_allclose(here + shift, elsewhere, atol=1e-9)


@given(name=names, before=st.sampled_from(["none", "nnm", "bucketing"]), rows=matrices(1))
def test_equal_updates_are_their_own_mean(name: str, before: Any, rows: list[list[int]]) -> None:
    same = np.array([rows[0]] * len(rows), dtype=np.float64)
    kind = ROBUST[name]
    steps = {"steps": 200, "smoothing": 1e-9} if kind is GeometricMedian else {}
    far = {"radius": 1e6} if kind is CenteredClipping else {}
    _, found = combine(kind(before=before, **steps, **far), same)
    np.testing.assert_allclose(found, same[0], atol=1e-9)


@given(name=st.sampled_from(sorted(set(ROBUST))), rows=matrices(2), size=st.sampled_from([1e6, 1e12, 1e30]))
def test_a_minority_of_huge_updates_never_decides(name: str, rows: list[list[int]], size: float) -> None:
    good = np.array(rows * 3, dtype=np.float64)
    f = max(1, (len(good) - 1) // 3)
    table = np.concatenate([good, np.full((f, good.shape[1]), size)])
    _, found = combine(ROBUST[name](bad=f / len(table) + 1e-6), table)
    assert np.linalg.norm(found) <= 4 * np.sqrt(good.shape[1]) * (np.abs(good).max() + 1)


def test_by_hand() -> None:
    rows = np.array([[0.0, 0.0], [2.0, 0.0], [4.0, 8.0], [100.0, -100.0]])
    assert combine(Median(), rows)[1].tolist() == [3.0, 0.0]
    assert combine(TrimmedMean(bad=0.25), rows)[1].tolist() == [3.0, 0.0]
    # The two nearest of each: 0: 4, 80; 1: 4, 68; 2: 68, 80.
    assert combine(Krum(bad=0.25), rows)[1].tolist() == [2.0, 0.0]
    assert combine(MultiKrum(bad=0.25), rows)[1].tolist() == [2.0, 8 / 3]
    assert combine(NormClipping(norm=1.0), np.array([[3.0, 4.0], [0.5, 0.0]]))[1].tolist() == [0.55, 0.4]


def test_centered_clipping_remembers_the_last_update() -> None:
    rows = np.array([[3.0, 0.0], [1.0, 0.0]])
    mean = CenteredClipping(radius=1.0)
    memory, first = combine(mean, rows)
    assert first.tolist() == [1.0, 0.0], "both shortened to 1"
    memory, second = combine(mean, rows, memory=memory)
    assert second.tolist() == [1.5, 0.0], "1, moved by the mean of 1 and 0"
    assert memory["update"].tolist() == [1.5, 0.0]


def test_more_weights_than_one_piece() -> None:
    rows = np.random.default_rng(0).normal(size=(5, 40_000))
    np.testing.assert_allclose(combine(Median(), rows)[1], np.median(rows, axis=0))
    np.testing.assert_allclose(combine(MultiKrum(bad=0.0), rows)[1], rows.mean(axis=0))
