"""Laws of `filter.least`: the filter's set if it is large enough, and else the best clients are added to it."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_greedy_laws import SetFunction, orders, set_functions

import filfl
from filfl.errors import ConfigError, PluginError
from filfl.filtering import Filtering, OnSamples, dgf, local_search, rgf
from filfl.filtering.at_least import AtLeast
from filfl.filtering.screen import Screened

FILTERS = st.sampled_from([dgf, rgf, local_search])


@given(FILTERS, set_functions, orders, st.integers(1, 9), st.integers(0, 1000))
def test_the_filters_set_is_extended_to_the_smallest_size(
    filter: Any, R: SetFunction, clients: list[int], least: int, seed: int
) -> None:
    plain = filter(clients, R, np.random.default_rng(seed))
    found, again = (AtLeast(filter, least)(clients, R, np.random.default_rng(seed)) for _ in range(2))
    assert found == again, "deterministic"
    assert found.kept[: len(plain.kept)] == plain.kept and set(found.kept) <= set(clients)
    assert len(found.kept) == len(set(found.kept)) == max(len(plain.kept), min(least, len(clients)))
    assert (found.trace, found.memory) == (plain.trace, plain.memory)
    extended = len(found.kept) > len(plain.kept)
    assert found.notes == (
        (f"the filter kept {len(plain.kept)} clients; extended to {len(found.kept)}",) if extended else ()
    )


@given(FILTERS, set_functions, orders, st.integers(1, 9))
def test_every_client_that_is_added_is_the_best_one(
    filter: Any, R: SetFunction, clients: list[int], least: int
) -> None:
    plain = filter(clients, R, np.random.default_rng(0)).kept
    found = AtLeast(filter, least)(clients, R, np.random.default_rng(0)).kept
    for size in range(len(plain), len(found)):
        S = frozenset(found[:size])
        best = max(R(S | {k}) for k in clients if k not in S)
        assert found[size] == next(k for k in clients if k not in S and R(S | {k}) == best), "ties go to the first"


@given(set_functions, orders, st.integers(1, 7))
def test_no_runner_up_is_smaller(R: SetFunction, clients: list[int], least: int) -> None:
    found = AtLeast(local_search, least)(clients, R, np.random.default_rng(0))
    assert all(len(each) >= min(least, len(clients)) for each in found.runners_up)


def keep(*ids: int) -> Any:
    return lambda clients, reward, rng: Filtering(kept=tuple(k for k in clients if k in ids))


def test_small_numbers() -> None:
    # The clients have the weights 0, 1, 2, 3, 4, and R is minus the distance of their mean to 3.
    def R(S: frozenset[int]) -> float:
        return -abs(sum(S) / len(S) - 3)

    def extended(*kept: int, least: int) -> tuple[Any, ...]:
        return AtLeast(keep(*kept), least)([4, 0, 1, 2, 3], R, np.random.default_rng(0)).kept

    assert extended(4, least=1) == (4,)
    assert extended(4, least=2) == (4, 2), "the mean of 4 and 2 is 3"
    assert extended(4, least=3) == (4, 2, 3)
    assert extended(4, least=4) == (4, 2, 3, 1)
    assert extended(least=1) == (3,), "also where the filter kept nobody"
    assert extended(4, least=9) == (4, 2, 3, 1, 0)


def test_a_set_that_a_filter_must_not_return_is_refused() -> None:
    with pytest.raises(PluginError, match="the filter must keep some of"):
        AtLeast(lambda clients, reward, rng: Filtering(kept=(9,)), 2)([1, 2], len, np.random.default_rng(0))


class Parts(OnSamples):
    """Five clients of which the first two hurt; K is 1."""

    clients, num_samples = (0, 1, 2, 3, 4), 3

    def losses_at(self, weights: Any) -> Any:
        hurts = np.array([9.0, 8.0, 1.0, 1.0, 1.0, 2.0])[: weights.shape[1]]
        return weights @ hurts[:, None] * np.array([1.0, 1.01, 1.02])

    def global_losses(self) -> Any:
        return np.full(3, 2.0)

    def on(self, rows: Any) -> Any:
        return self

    def __call__(self, subset: frozenset[int]) -> float:
        return -float(sum(subset))  # the clients that hurt have the highest reward


@pytest.mark.parametrize(("least", "kept"), [(1, (4,)), (3, (4, 2, 3)), (4, (4, 1, 2, 3)), (5, (4, 0, 1, 2, 3))])
def test_clients_that_hurt_by_themselves_are_added_last(least: int, kept: tuple[int, ...]) -> None:
    filter = Screened(AtLeast(keep(4), least), least)
    assert filter(list(Parts.clients), Parts(), np.random.default_rng(0)).kept == kept


RUN: dict[str, Any] = {"rounds": 2, "selection.k": 2, "filter.period": 1}
FEW = {"filter.name": "dgf", "filter.least": 6}


@pytest.mark.parametrize(
    "changes",
    [
        FEW,
        {**FEW, "filter.name": "rgf"},
        {**FEW, "filter.name": "prune"},
        {**FEW, "filter.name": "local-search", "filter.reward": "ensemble"},
        {**FEW, "filter.name": "local-search", "filter.reward": "ensemble", "filter.verify": 3},
        {**FEW, "filter.name": "local-search", "filter.reward": "ensemble", "filter.transport": "logits"},
        {**FEW, "filter.data": "federated"},
        {**FEW, "filter.cap": 7},
    ],
    ids=lambda changes: "-".join(map(str, changes.values())),
)
def test_a_run_has_sets_of_that_size(blobs: filfl.FederatedData, changes: dict[str, Any]) -> None:
    records = filfl.simulate({**RUN, **changes}, data=blobs).records
    assert all(len(record["filtered"]) >= 6 for record in records)
    smaller = filfl.simulate({**RUN, **changes, "filter.least": "unset"}, data=blobs).records
    assert len(smaller[0]["filtered"]) < 6, "so that there is something to extend"
    assert set(smaller[0]["filtered"]) <= set(records[0]["filtered"]) or changes.get("filter.verify")
    note = f"the filter kept {len(smaller[0]['filtered'])} clients; extended to 6"
    assert note in records[0]["notes"] or changes.get("filter.verify")
    assert records[0]["trace"] == smaller[0]["trace"], "the trace has what the filter decided"


def test_the_cost_is_one_evaluation_for_every_client_that_could_be_added(blobs: filfl.FederatedData) -> None:
    def evaluations(**changes: Any) -> int:
        config = {**RUN, "rounds": 1, "filter.honest_gain": False, **changes}
        return filfl.simulate(config, data=blobs, filter=keep(3)).records[0]["evaluations"]

    assert (evaluations(), evaluations(**{"filter.least": 1})) == (0, 0)
    assert evaluations(**{"filter.least": 3}) == 8 + 7


def test_the_honest_gain_is_that_of_the_extended_set(blobs: filfl.FederatedData) -> None:
    def gain(**changes: Any) -> float:
        return filfl.simulate({**RUN, "rounds": 1, **changes}, data=blobs, filter=keep(3)).records[0]["honest_gain"]

    assert gain(**{"filter.least": 9}) == 0.0, "the set of all clients gains nothing over itself"
    assert gain() != 0.0


def test_a_size_above_the_cap_is_refused(blobs: filfl.FederatedData) -> None:
    with pytest.raises(ConfigError, match=r"filter.least must be between 1 and filter.cap = 5 \(got 6\)"):
        filfl.simulate({**RUN, "filter.cap": 5, "filter.least": 6}, data=blobs)
