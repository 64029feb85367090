"""Laws of the ensemble reward, and of whole runs that filter by it."""

from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import filfl
from filfl.evaluation import Samples, cross_entropy
from filfl.filtering.by_models import ensemble_reward
from filfl.filtering.filtering_set import FilteringSet
from filfl.weights import FlatModel

ENSEMBLE = {"filter.name": "local-search", "filter.reward": "ensemble", "filter.verify": 3}


@given(st.integers(0, 2**32 - 1), st.sampled_from(["zero", "global"]), st.integers(1, 230))
def test_for_a_linear_model_the_ensemble_reward_is_the_reward(seed: int, empty: str, m: int) -> None:
    rng = np.random.default_rng(seed)
    net = FlatModel(nn.Linear(3, 4), torch.device("cpu"))
    y = torch.tensor(rng.integers(4, size=m))
    x = torch.tensor(rng.normal(size=(m, 3)), dtype=torch.float32)
    V = FilteringSet.of(net, Samples(x, y, torch.tensor(1.0), torch.tensor(0.0)), cross_entropy)
    trained = {k: torch.tensor(rng.normal(size=16) * 2, dtype=torch.float32) for k in range(4)}
    w_t = net.weights()
    R = V.judgement(w_t).reward(trained, w_t, empty == "global")
    ensemble = ensemble_reward(V, trained, w_t, empty == "global")
    for size in range(5):
        for subset in map(frozenset, combinations(trained, size)):
            assert ensemble(subset) == pytest.approx(R(subset), abs=1e-4)
    assert ensemble.evaluations == 4 + (empty == "global")


@pytest.mark.parametrize("name", ["dgf", "rgf", "local-search"])
def test_for_a_linear_model_a_run_records_equal_rewards_and_surrogates(small: dict[str, Any], name: str) -> None:
    del small["model.hidden"]
    result = filfl.simulate({**small, "model.name": "logistic", "filter.name": name, "filter.reward": "ensemble"})
    filtered = [record for record in result.records if record["did_filter"]]
    assert filtered
    for record in filtered:
        for which in ("all", "filtered", "selected"):
            assert record[f"surrogate_{which}"] == pytest.approx(record[f"reward_{which}"], abs=1e-4)
        assert record["evaluations"] == 8 + (name != "local-search"), "local search never asks for the empty set"


def test_a_verified_filter_is_never_worse_than_keeping_all(small: dict[str, Any]) -> None:
    # A step size so large that the surrogate is wrong.
    config = {**small, **ENSEMBLE, "rounds": 12, "filter.period": 1, "training.lr": 2.0, "training.epochs": 5}
    result = filfl.simulate({**config, "data.noisy": 0.3})
    assert all(record["reward_filtered"] >= record["reward_all"] for record in result.records)
    assert all(8 + 1 < record["evaluations"] <= 8 + 3 + 1 for record in result.records)
    unverified = filfl.simulate({**config, "data.noisy": 0.3, "filter.verify": 0})
    assert any(record["reward_filtered"] < record["reward_all"] for record in unverified.records)
    assert any("verified:" in note for record in result.records for note in record["notes"])


def test_records_of_the_ensemble_have_both_rewards(small: dict[str, Any]) -> None:
    result = filfl.simulate({**small, **ENSEMBLE, "rounds": 5})
    for record in result.records:
        for which in ("all", "filtered", "selected"):
            true, surrogate = record[f"reward_{which}"], record[f"surrogate_{which}"]
            assert (true is None) == (surrogate is None) == (not record["did_filter"])
            assert true is None or (true != surrogate and abs(true - surrogate) < 0.2)
