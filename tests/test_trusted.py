"""Trusted clients: where clients judge, only these are asked, and a filtering set from all clients causes a warning."""

from typing import Any

import numpy as np
import pytest

import filfl
from filfl.filtering.by_models import NOBODY_JUDGED

SMALL: dict[str, Any] = {
    "rounds": 4,
    "data.clients": 12,
    "model.hidden": [8],
    "filter.period": 1,
    "selection.k": 3,
    "availability.name": "redraw",
    "availability.n": 6,
    "availability.every": 1,
}


def run(**changes: Any) -> tuple[filfl.Result, list[str]]:
    said: list[str] = []
    dotted = {key.replace("__", "."): value for key, value in changes.items()}
    return filfl.simulate({**SMALL, **dotted}, say=said.append), said


@pytest.mark.parametrize("data", ["variable", "federated"])
def test_only_trusted_clients_judge(data: str) -> None:
    result, said = run(filter__data=data, data__trusted=["1", "4", "7"])
    judged = [record for record in result.records if record["judges"]]
    assert judged and all(set(record["judges"]) <= {1, 4, 7} for record in judged)
    for record in result.records:
        there = set(record["available"]) & {1, 4, 7}
        if data == "federated":
            assert set(record["judges"]) == there
        if not there:
            assert NOBODY_JUDGED in record["notes"] and record["filtered"] == sorted(record["considered"])
            assert record["reward_filtered"] is None
        else:
            assert NOBODY_JUDGED not in record["notes"]
    assert any(not record["judges"] for record in result.records), "a filtering without any of them"
    assert not any("bad clients" in text for text in said)
    assert "samples of 3 trusted clients (1, 4, 7)" in result.summary["filtering_set"]


@pytest.mark.parametrize("data", ["variable", "federated"])
def test_judgement_by_all_clients_is_warned_about_once(data: str) -> None:
    result, said = run(filter__data=data)
    warnings = [text for text in said if "bad clients" in text]
    assert len(warnings) == 1 and "data.trusted" in warnings[0]
    notes = [note for record in result.records for note in record["notes"] if "bad clients" in note]
    assert notes == warnings
    assert result.summary["filtering_set"].endswith("samples of all 12 clients, whose labels may be wrong")


def test_trusting_all_clients_changes_no_choice() -> None:
    every = [str(k) for k in range(12)]
    for data in ("variable", "federated"):
        one, other = run(filter__data=data)[0], run(filter__data=data, data__trusted=every)[0]
        assert [r["filtered"] for r in one.records] == [r["filtered"] for r in other.records]


def test_a_dataset_with_clients_of_its_own_takes_both_sets_from_trusted_clients() -> None:
    made: dict[str, Any] = {**SMALL, "data.name": "synthetic", "data.trusted": ["2", "3"], "data.filtering": 0.5}
    config = filfl.Config.read(made)
    data = config.data.load(0)
    assert {*data.test_clients} == {2, 3} and data.filter_from == data.test_from == "trusted"
    whole = filfl.Config.read({**made, "data.trusted": []}).data.load(0)
    assert (np.diff(data.offsets) > np.diff(whole.offsets)).sum() == 10, "the other clients keep all their samples"
