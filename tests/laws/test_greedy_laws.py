"""Laws of DGF, RGF and the exhaustive search on random set functions."""

from collections.abc import Callable
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from filfl.filtering import DGF, RGF, KeepAll, Opt, dgf, keep_all, opt, rgf

SetFunction = Callable[[frozenset[int]], float]


def random_set_function(n: int, seed: int, ties: bool) -> SetFunction:
    """A random value for every subset; with `ties`, one of three values, so that equal gains are common."""
    rng = np.random.default_rng(seed)
    values = rng.integers(3, size=2**n).astype(float) if ties else rng.uniform(-5, 5, size=2**n)
    return lambda subset: float(values[sum(1 << k for k in subset)])


def algorithm_2(
    clients: list[int], R: SetFunction, chi: str, rng: np.random.Generator
) -> tuple[list[int], list[tuple]]:
    """The paper's Algorithm 2 line by line, without saving any evaluation."""
    X, Y = set(), set(clients)
    trace = []
    for u in clients:
        a = R(frozenset(X | {u})) - R(frozenset(X))
        b = R(frozenset(Y - {u})) - R(frozenset(Y))
        a_, b_ = max(a, 0), max(b, 0)
        p = int(a > b) if chi == "D" else 1 if a_ == b_ == 0 else a_ / (a_ + b_)
        if rng.random() < p:
            X = X | {u}
        else:
            Y = Y - {u}
        trace.append((u, a, b, p, u in X))
    assert X == Y
    return [u for u in clients if u in X], trace


set_functions = st.builds(random_set_function, st.just(7), seed=st.integers(0, 2**32 - 1), ties=st.booleans())
orders = st.lists(st.integers(0, 6), unique=True, max_size=7)


@given(set_functions, orders, st.integers(0, 1000))
def test_dgf_and_rgf_equal_algorithm_2(R: SetFunction, clients: list[int], seed: int) -> None:
    for chi, result in {
        "D": dgf(clients, R),
        "R": rgf(clients, R, np.random.default_rng(seed)),
    }.items():
        kept, trace = algorithm_2(clients, R, chi, np.random.default_rng(seed))
        assert list(result.kept) == kept
        assert [(s.client, s.a, s.b, s.p, s.kept) for s in result.trace] == trace


@given(set_functions, orders, st.integers(0, 1000))
def test_at_most_2n_minus_1_evaluations_of_non_empty_sets(R: SetFunction, clients: list[int], seed: int) -> None:
    for chi in (dgf, rgf):
        asked: list[frozenset[int]] = []

        def counted(subset: frozenset[int], asked: list[frozenset[int]] = asked) -> float:
            asked.append(subset)
            return R(subset)

        chi(clients, counted, np.random.default_rng(seed))
        assert sum(bool(subset) for subset in asked) <= max(0, 2 * len(clients) - 1)
        assert all(subset <= set(clients) for subset in asked)


@given(set_functions, orders, st.integers(0, 1000))
def test_plugins_equal_their_functions(R: SetFunction, clients: list[int], seed: int) -> None:
    for plugin, function in ((DGF(), dgf), (RGF(), rgf), (Opt(), opt), (KeepAll(), keep_all)):
        one, other = np.random.default_rng(seed), np.random.default_rng(seed)
        assert plugin(clients, R, one) == function(clients, R, other)
        assert one.random() == other.random(), "the same number of draws"


@given(set_functions, orders.filter(bool))
def test_opt_is_the_best_subset(R: SetFunction, clients: list[int]) -> None:
    subsets = [frozenset(c) for size in range(1, len(clients) + 1) for c in combinations(clients, size)]
    best = max(R(subset) for subset in subsets)
    kept = opt(clients, R).kept
    assert R(frozenset(kept)) == best
    assert list(kept) == [u for u in clients if u in kept]
    assert len(kept) == min(len(subset) for subset in subsets if R(subset) == best)


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=10))
def test_dgf_on_a_modular_reward_keeps_exactly_the_positive_clients(worth: list[float]) -> None:
    clients = range(len(worth))
    exact = [round(value * 1024) for value in worth]  # whole numbers: their sums have no rounding
    result = dgf(list(clients), lambda S: float(sum(exact[k] for k in S)))
    assert list(result.kept) == [k for k in clients if exact[k] > 0]


def directed_cut(n: int, seed: int) -> SetFunction:
    """f(S) = the weight of the edges that leave S: non-negative, submodular, not monotone."""
    rng = np.random.default_rng(seed)
    edges = rng.random((n, n)) * (rng.random((n, n)) < 0.4)

    def cut(subset: frozenset[int]) -> float:
        inside = np.isin(np.arange(n), list(subset))
        return float(edges[np.ix_(inside, ~inside)].sum())

    return cut


@pytest.mark.parametrize("seed", range(40))
def test_double_greedy_guarantees_on_random_cuts(seed: int) -> None:
    n = 8
    cut, clients = directed_cut(n, seed), list(range(n))
    best = cut(frozenset(opt(clients, cut).kept))
    assert cut(frozenset(dgf(clients, cut).kept)) >= best / 3 - 1e-9
    draws = [cut(frozenset(rgf(clients, cut, np.random.default_rng(i)).kept)) for i in range(300)]
    # The guarantee is for the mean; three standard errors allow for the number of draws.
    assert np.mean(draws) >= best / 2 - 3 * np.std(draws) / np.sqrt(len(draws)) - 1e-9


@given(orders)
def test_keep_all_never_evaluates_the_reward(clients: list[int]) -> None:
    def never(subset: frozenset[int]) -> float:
        raise AssertionError("keep-all needs no reward")

    assert list(keep_all(clients, never).kept) == clients
