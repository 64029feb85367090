"""`filter.optimum`: the reward of the best subset is recorded and changes nothing else."""

from typing import Any

import pytest
import torch

import filfl
from filfl.filtering import FILTERS

REWARDS = ("reward_all", "reward_filtered", "reward_selected")


def without_optimum(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in record.items() if key != "reward_optimum"} for record in records]


@pytest.mark.parametrize(
    "changes",
    [
        *({"filter.name": name} for name in FILTERS),
        {"filter.name": "local-search", "filter.reward": "ensemble", "filter.verify": 2},
        {"filter.name": "dgf", "filter.empty": "global"},
        {"filter.name": "rgf", "filter.cap": 5},
        {"filter.name": "dgf", "attack.name": "scaled", "attack.share": 0.3, "attack.factor": 1000.0},  # outliers
    ],
    ids=lambda changes: "-".join(map(str, changes.values())),
)
def test_the_optimum_changes_only_its_own_field(small: dict[str, Any], changes: dict[str, Any]) -> None:
    plain, asked = (filfl.simulate({**small, **changes, "filter.optimum": optimum}) for optimum in (False, True))
    assert without_optimum(asked.records) == without_optimum(plain.records)
    assert all(map(torch.equal, asked.model.parameters(), plain.model.parameters()))
    assert all(record["reward_optimum"] is None for record in plain.records)
    assert [record["reward_optimum"] is not None for record in asked.records] == [
        record["did_filter"] for record in plain.records
    ]
    for record in (r for r in asked.records if r["did_filter"]):
        assert all(record["reward_optimum"] >= record[key] for key in REWARDS if record[key] is not None)
        if changes["filter.name"] == "opt":
            assert record["reward_optimum"] == record["reward_filtered"]


def test_the_optimum_equals_the_reward_found_by_opt(small: dict[str, Any]) -> None:
    one = {**small, "rounds": 1}  # later rounds start from other models
    (greedy,) = filfl.simulate({**one, "filter.name": "rgf", "filter.optimum": True}).records
    (best,) = filfl.simulate({**one, "filter.name": "opt"}).records
    assert greedy["reward_optimum"] == best["reward_filtered"] > greedy["reward_all"]
    assert greedy["evaluations"] < best["evaluations"] == 2**8 - 1


def test_parallel_evaluation_gives_the_same_optimum(small: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    config = {**small, "filter.optimum": True}
    alone = filfl.simulate(config).records
    monkeypatch.setattr("filfl.filtering.networks.MIN_WORK", 0)
    assert filfl.simulate({**config, "execution.workers": 3}).records == alone


def test_without_a_filter_no_optimum_is_recorded(small: dict[str, Any]) -> None:
    records = filfl.simulate({**small, "filter.name": "none", "filter.optimum": True, "data.clients": 30}).records
    assert all(record["reward_optimum"] is None for record in records)
