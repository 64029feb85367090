"""The comparison of two runs: which decisions count as ties, and that a run that differs fails."""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import filfl
from filfl.selection.divfl import DivFL
from filfl.selection.power_of_choice import PowerOfChoice
from filfl.selection.random import Random
from replay import TOLERANCE, is_local_optimum, is_tie, replay

POINTS = [0.0, 0.0, 10.0, 11.0, -30.0]
"""Of five clients on a line, 0 and 1 are equal, and so are the gains of 2 and 3 once 0 and 4 are chosen."""


def asking(losses: Sequence[float] = ()) -> Any:
    gradients: Mapping[int, torch.Tensor] = {i: torch.tensor([p]) for i, p in enumerate(POINTS)}
    return SimpleNamespace(losses=lambda ids: dict(enumerate(losses)), gradients=lambda ids: gradients)


@pytest.mark.parametrize(
    ("chosen", "tie"), [([0, 2, 4], True), ([1, 3, 4], True), ([0, 1, 4], False), ([2, 3, 4], False)]
)
def test_a_tie_of_divfl_is_a_greedy_choice_in_some_order(chosen: list[int], tie: bool) -> None:
    assert is_tie(DivFL(k=3), [1, 2, 4], chosen, range(5), asking()) is tie


@pytest.mark.parametrize(("chosen", "tie"), [([0, 1], True), ([0, 2], True), ([0, 3], False), ([0], False)])
def test_a_tie_of_power_of_choice_has_equal_losses(chosen: list[int], tie: bool) -> None:
    ask = asking([3.0, 2.0, 2.0 + TOLERANCE, 2.0 - 3 * TOLERANCE])
    assert is_tie(PowerOfChoice(k=2), [0, 2], chosen, range(4), ask) is tie


def test_random_selection_has_no_ties() -> None:
    assert not is_tie(Random(k=2), [0, 1], [0, 2], range(4), asking())


def test_a_local_optimum_cannot_gain_by_one_client() -> None:
    def reward(S: frozenset[int]) -> float:
        return float(2 in S) - float(3 in S) + TOLERANCE / 2 * float(1 in S)

    assert [is_local_optimum(frozenset(S), [1, 2, 3], reward) for S in ({1, 2}, {2}, {1}, {2, 3})] == [
        True,
        True,
        False,
        False,
    ]


@pytest.mark.parametrize("change", [{"training.lr": 0.101}, {"filter.name": "rgf"}, {"selection.name": "divfl"}])
def test_a_run_that_differs_fails(small: dict[str, Any], change: dict[str, Any]) -> None:
    # With R({}) = 0 the filter keeps more clients than K, so that selections differ.
    config = {**small, "rounds": 2, "training.lr": 0.1, "filter.empty": "zero", "selection.name": "power-of-choice"}
    records = filfl.simulate(config).records
    replay(config, records)
    with pytest.raises(AssertionError):
        replay({**config, **change}, records)


def test_a_decision_that_is_not_a_tie_fails(small: dict[str, Any]) -> None:
    config = {**small, "rounds": 2, "filter.name": "dgf"}
    records = filfl.simulate(config).records
    step = records[0]["trace"][np.argmax([abs(step["a"] - step["b"]) for step in records[0]["trace"]])]
    step["kept"] = not step["kept"]
    records[0]["filtered"] = sorted(step["client"] for step in records[0]["trace"] if step["kept"])
    with pytest.raises(AssertionError):
        replay(config, records)
