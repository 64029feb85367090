"""The option filter.screen, and values with the paper's reward."""

from typing import Any

import pytest

import filfl
from filfl.config.config import Config
from filfl.errors import ConfigError

SMALL: dict[str, Any] = {
    "rounds": 2,
    "data.name": "digits",
    "data.clients": 8,
    "filter.period": 1,
    "selection.k": 3,
    "attack.name": "scaled",
    "attack.share": 0.25,
    "attack.factor": 30.0,
}


@pytest.mark.parametrize(
    ("changes", "screens"),
    [
        ({}, False),
        ({"filter.reward": "ensemble"}, True),
        ({"filter.reward": "ensemble", "filter.transport": "logits"}, True),
        ({"filter.reward": "ensemble", "filter.screen": False}, False),
        ({"filter.screen": True}, True),
        ({"filter.name": "prune"}, False),
        ({"filter.name": "keep-all", "filter.reward": "ensemble"}, False),
        ({"filter.name": "none"}, False),
    ],
)
def test_the_screen_is_on_where_outputs_are_known(changes: dict[str, Any], screens: bool) -> None:
    assert Config.read({}).with_changes(changes).filter.screens == screens


def test_a_screen_needs_a_filtering_set_on_the_server() -> None:
    with pytest.raises(ConfigError, match=r"filter\.screen needs a filtering set on the server"):
        filfl.simulate({**SMALL, "filter.screen": True, "filter.data": "federated"}, progress=False)


@pytest.mark.parametrize("reward", ["average", "ensemble"])
def test_oversized_updates_are_screened_with_either_reward(reward: str) -> None:
    result = filfl.simulate({**SMALL, "filter.screen": True, "filter.reward": reward}, progress=False)
    bad = {row.id for row in result.clients.itertuples() if row.fault}
    assert len(bad) == 2
    for record in result.records:
        assert not bad & set(record["filtered"]), "they are not kept"
        assert sorted(step["client"] for step in record["trace"]) == sorted(record["considered"])


def test_values_beside_the_average_reward_are_those_of_one_of_k() -> None:
    """The values are those of the ensemble reward, which knows K, also where the filter maximises the other reward."""
    first = {}
    for reward in ("average", "ensemble"):
        changes = {"rounds": 1, "filter.name": "keep-all", "filter.values": "one-of-k", "filter.reward": reward}
        first[reward] = filfl.simulate({**SMALL, **changes}, progress=False).records[0]["values"]
    assert [value["client"] for value in first["average"]] == [value["client"] for value in first["ensemble"]]
    for one, other in zip(first["average"], first["ensemble"], strict=True):
        assert one["value"] == pytest.approx(other["value"], rel=1e-5)
