"""What must always hold of the ensemble reward, and of whole runs that filter by it."""

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
from filfl.sections import FilterOptions
from filfl.simulation.inference import Inference
from filfl.simulation.rewards import make_reward, make_surrogate
from filfl.weights import FlatModel

ENSEMBLE = {"filter.name": "local-search", "filter.reward": "ensemble", "filter.verify": 3}


@given(st.integers(0, 2**32 - 1), st.sampled_from(["zero", "global"]), st.integers(1, 230))
def test_for_a_linear_model_the_ensemble_reward_is_the_reward(seed: int, empty: str, m: int) -> None:
    rng = np.random.default_rng(seed)
    net = FlatModel(nn.Linear(3, 4), torch.device("cpu"))
    y = torch.tensor(rng.integers(4, size=m))
    V = Samples(torch.tensor(rng.normal(size=(m, 3)), dtype=torch.float32), y, torch.tensor(1.0), torch.tensor(0.0))
    trained = {k: torch.tensor(rng.normal(size=16) * 2, dtype=torch.float32) for k in range(4)}
    options = FilterOptions(reward="ensemble", empty=empty)
    R = make_reward(options, Inference(net), V, cross_entropy)(trained, net.weights(), None)
    ensemble = make_surrogate(options, Inference(net), V, cross_entropy)(trained, net.weights())
    for size in range(5):
        for subset in map(frozenset, combinations(trained, size)):
            assert ensemble(subset) == pytest.approx(R(subset), abs=1e-4)
    assert ensemble.evaluations == 4 + (empty == "global")


def test_without_a_surrogate_nothing_stands_in_for_the_reward() -> None:
    net = FlatModel(nn.Linear(3, 4), torch.device("cpu"))
    V = Samples(torch.zeros(1, 3), torch.zeros(1, dtype=torch.int64), torch.tensor(1.0), torch.tensor(0.0))
    assert make_surrogate(FilterOptions(), Inference(net), V, cross_entropy) is None


@pytest.mark.parametrize("name", ["dgf", "rgf", "local-search"])
def test_for_a_linear_model_a_whole_run_records_the_same_rewards_twice(small: dict[str, Any], name: str) -> None:
    del small["model.hidden"]
    result = filfl.simulate({**small, "model.name": "logistic", "filter.name": name, "filter.reward": "ensemble"})
    filtered = [record for record in result.records if record["did_filter"]]
    assert filtered
    for record in filtered:
        for which in ("all", "filtered", "selected"):
            assert record[f"surrogate_{which}"] == pytest.approx(record[f"reward_{which}"], abs=1e-4)
        assert record["evaluations"] == 8


def test_a_verified_filter_is_never_worse_than_keeping_all(small: dict[str, Any]) -> None:
    # So large a step that the surrogate goes wrong.
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
