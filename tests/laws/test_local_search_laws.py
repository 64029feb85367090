"""Laws of local search on random set functions, and of verification."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from test_greedy_laws import SetFunction, orders, set_functions

from filfl.filtering import local_search, opt
from filfl.filtering.by_models import best_verified
from filfl.filtering.local_search import RUNNERS_UP, LocalSearch

some = orders.filter(bool)
restarts = st.integers(0, 4)
seeds = st.integers(0, 1000)


def draws(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def neighbours(S: frozenset[int], clients: list[int]) -> list[frozenset[int]]:
    """Every non-empty set that differs by one client added, dropped or swapped."""
    flips = [S ^ {u} for u in clients]
    swaps = [S - {u} | {v} for u in S for v in clients if v not in S]
    return [T for T in flips + swaps if T]


def is_local_optimum(S: frozenset[int], R: SetFunction, clients: list[int]) -> bool:
    return all(R(T) <= R(S) for T in neighbours(S, clients))


@given(set_functions, some, seeds, restarts)
def test_it_stops_where_no_move_improves(R: SetFunction, clients: list[int], seed: int, starts: int) -> None:
    found = local_search(clients, R, draws(seed), starts)
    assert is_local_optimum(frozenset(found.kept), R, clients)
    for kept in (found.kept, *found.runners_up):
        assert kept and list(kept) == [u for u in clients if u in kept], "in the order visited"


@given(set_functions, some, seeds, restarts)
def test_it_is_never_worse_than_its_starts_nor_better_than_opt(
    R: SetFunction, clients: list[int], seed: int, starts: int
) -> None:
    rng = np.random.default_rng(seed)
    value = R(frozenset(local_search(clients, R, np.random.default_rng(seed), starts).kept))
    drawn = [frozenset(u for u in clients if rng.random() < 0.5) or frozenset(clients[:1]) for _ in range(starts)]
    assert all(value >= R(S) for S in [frozenset(clients), *(frozenset({u}) for u in clients), *drawn])
    assert value <= R(frozenset(opt(clients, R).kept))


@given(set_functions, some, seeds, restarts)
def test_runners_up_are_results_of_other_starts_then_other_sets_each_best_first(
    R: SetFunction, clients: list[int], seed: int, starts: int
) -> None:
    found = local_search(clients, R, draws(seed), starts)
    sets = [frozenset(kept) for kept in (found.kept, *found.runners_up)]
    assert len(set(sets)) == len(sets) <= starts + 2 + RUNNERS_UP

    def best_first(some: list[frozenset[int]]) -> bool:
        return [R(S) for S in some] == sorted((R(S) for S in some), reverse=True)

    assert any(
        best_first(sets[:ends])
        and all(is_local_optimum(S, R, clients) for S in sets[:ends])
        and best_first(sets[ends:])
        for ends in range(1, starts + 3)
    )


def test_a_second_peak_is_the_first_runner_up() -> None:
    # Two peaks, {0, 1} and {2, 3}: they are two moves apart, and each client of one peak lowers the other.
    found = local_search([0, 1, 2, 3], lambda S: abs(len(S & {0, 1}) - len(S & {2, 3})) + 0.1 * (0 in S), draws(0))
    assert found.kept == (0, 1) and found.runners_up[0] == (2, 3)
    # The next sets have reward 1.1: an odd number of clients, with client 0.
    assert found.runners_up[1] in {(0,), (0, 1, 2), (0, 1, 3), (0, 2, 3)}


@given(set_functions, orders, seeds)
def test_equal_seeds_give_equal_results(R: SetFunction, clients: list[int], seed: int) -> None:
    assert local_search(clients, R, draws(seed)) == local_search(clients, R, draws(seed))


@given(set_functions, orders, seeds, restarts)
def test_the_plugin_is_the_function_with_its_option(R: SetFunction, clients: list[int], seed: int, starts: int) -> None:
    plugin = LocalSearch(restarts=starts)(clients, R, draws(seed))
    assert plugin == local_search(clients, R, draws(seed), starts)
    if starts == 2:
        assert plugin == LocalSearch()(clients, R, draws(seed)), "the default"


@given(set_functions, orders, seeds)
def test_without_restarts_nothing_is_drawn(R: SetFunction, clients: list[int], seed: int) -> None:
    rng = draws(seed)
    assert local_search(clients, R, rng, 0) == local_search(clients, R, draws(seed + 1), 0)
    assert rng.random() == draws(seed).random()


@given(st.lists(st.integers(-1000, 1000).filter(bool), min_size=1, max_size=8, unique=True), seeds)
def test_it_equals_opt_on_a_modular_reward(worth: list[int], seed: int) -> None:
    def R(S: frozenset[int]) -> float:
        return float(sum(worth[k] for k in S))

    clients = list(range(len(worth)))
    found = local_search(clients, R, draws(seed))
    assert found.kept == opt(clients, R).kept
    assert [(s.client, s.a, s.b, s.p, s.kept) for s in found.trace] == [
        (k, None, None, float(k in found.kept), k in found.kept) for k in clients
    ]


@given(set_functions, orders, seeds)
def test_no_set_is_evaluated_twice_and_the_empty_set_never(R: SetFunction, clients: list[int], seed: int) -> None:
    asked: list[frozenset[int]] = []
    local_search(clients, lambda S: (asked.append(S), R(S))[1], draws(seed))
    assert len(set(asked)) == len(asked) and frozenset() not in asked


def test_a_constant_reward_keeps_every_client() -> None:
    assert local_search([3, 1, 2], lambda S: 1.0, draws(0)).kept == (3, 1, 2), "a move must strictly improve"
    assert local_search([], lambda S: 1.0, draws(0)).kept == ()


@given(set_functions, some, st.lists(st.frozensets(st.integers(0, 6)), min_size=1, max_size=5), st.integers(1, 6))
def test_verification_returns_the_first_best_of_the_sets_it_evaluates(
    R: SetFunction, clients: list[int], sets: list[frozenset[int]], most: int
) -> None:
    asked: list[frozenset[int]] = []
    best = best_verified(sets, clients, lambda S: (asked.append(S), R(S))[1], most)
    assert asked == [*sets[:most], frozenset(clients)]
    assert R(best) == max(R(S) for S in asked)
    assert all(R(S) < R(best) for S in asked[: asked.index(best)])
