"""The option filter.screen, and values with the paper's reward."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn

import filfl
from filfl.aggregation.base import Admitted
from filfl.config.config import Config
from filfl.core.clients import Failure, Update
from filfl.errors import ConfigError
from filfl.filtering.filtering_set import FilteringSet
from filfl.filtering.screen import UpdateScreen
from filfl.simulation.wrappers.forwarding import Forwarding
from filfl.simulation.wrappers.logit_cache import LogitCache
from filfl.weights import Layout, Weights

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


def screen() -> tuple[UpdateScreen, Weights]:
    """The screen of a linear network with three inputs, of which the largest is the class; w_t knows nothing."""
    x = torch.eye(3).repeat(4, 1) * torch.linspace(0.5, 1.5, 12)[:, None]  # samples that are not all alike
    V = FilteringSet(lambda: nn.Linear(3, 3, bias=False), x, torch.arange(3).repeat(4))
    return UpdateScreen(V), Layout.of(nn.Linear(3, 3, bias=False)).empty()


def updates(*factors: float) -> dict[int, Admitted]:
    """Clients 0, 1, ... that send this multiple of the right weights."""
    nothing = torch.zeros(0, dtype=torch.int64)
    return {k: Admitted(Weights(x * torch.eye(3).flatten(), nothing), 1, 0.0) for k, x in enumerate(factors)}


@pytest.mark.parametrize(
    ("factors", "refused"),
    [
        ((1, 1, 1, 1, 1), []),
        ((1, 1, 1, 1, 0.01), []),
        ((1, -4, 1, 1, 1), [1]),
        ((1, -4, 1, -1, 1), [1, 3]),
        ((1, -1, -2, -3, 1), [1, 2, 3]),  # they are the majority, but the loss leaves no doubt
        ((-1, -1, -1), [0]),  # nobody is better, and V may be the wrong one: at most half
        ((1, -4), [1]),
        ((-4,), []),
    ],
)
def test_updates_that_hurt_by_themselves_are_refused(factors: Sequence[float], refused: list[int]) -> None:
    screened, w_t = screen()
    found = screened(updates(*factors), w_t)
    assert sorted(found) == refused
    assert all("raises the loss on the filtering set" in reason for reason in found.values())


def test_updates_that_hurt_only_together_are_refused() -> None:
    """Two layers I: alone, as one of four, (1 - 3/4) (1 + 16/4) = 1.25 is a better factor than 1. Together it is -4.5,
    and one of them among three gives 0."""

    class Net(nn.Sequential):
        def __init__(self) -> None:
            super().__init__(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))

    screened, _ = screen()
    V = FilteringSet(Net, screened.V.samples.x, screened.V.targets())
    eye, nothing = torch.eye(3).flatten(), torch.zeros(0, dtype=torch.int64)
    honest, bad = (Weights(torch.cat([a * eye, b * eye]), nothing) for a, b in ((1, 1), (-2, 17)))
    given = {k: Admitted(weights, 1, 0.0) for k, weights in enumerate([honest, bad, bad, honest])}
    found = UpdateScreen(V)(given, honest)
    assert found.keys() == {1, 2}
    assert all(reason.startswith("together with the other updates") for reason in found.values())


def test_an_update_that_overflows_alone_is_refused() -> None:
    screened, w_t = screen()
    assert screened(updates(1, 3e38, 1), replace(w_t, vector=w_t.vector - 3e38)) == {}, "the global model is to blame"
    broken = updates(1, 1, 1)
    broken[1].weights.vector[0] = float("inf")
    assert screened(broken, w_t) == {1: "its update alone, as one of 3, gives outputs that are not finite"}


class BetweenFilterings(Forwarding):
    """Clients of which two are honest in filter rounds, in which all clients train, and attack in all others."""

    def train(self, t: int, ids: Sequence[int], weights: Weights) -> dict[int, Update | Failure]:
        replies = self._clients.train(t, ids, weights)
        for k in {0, 1} & replies.keys() if len(ids) < SMALL["data.clients"] else ():
            reply = replies[k]
            assert isinstance(reply, Update) and isinstance(reply.weights, Weights)
            vector = weights.vector - 4 * (reply.weights.vector - weights.vector)
            replies[k] = replace(reply, weights=replace(reply.weights, vector=vector))
        return replies


@pytest.mark.parametrize("filter", ["dgf", "local-search"])
@pytest.mark.parametrize("transport", ["models", "logits"])
def test_clients_that_attack_between_filterings_are_refused(filter: str, transport: str) -> None:
    config = {key: value for key, value in SMALL.items() if not key.startswith("attack")}
    config |= {"rounds": 10, "filter.period": 5, "filter.size": 100}
    changes = {"filter.name": filter, "filter.reward": "ensemble", "filter.transport": transport}
    changes["filter.screen"] = True
    with mock.patch("filfl.simulation.build.LogitCache", lambda clients, V: LogitCache(BetweenFilterings(clients), V)):
        result = filfl.simulate({**config, **changes}, progress=False)
    attacked = {(t, k) for t, each in enumerate(result.records) for k in {0, 1} & set(each["selected"])}
    attacked = {(t, k) for t, k in attacked if not result.records[t]["did_filter"]}
    refused = {(t, int(k)) for t, each in enumerate(result.records) for k in each["refused"]}
    assert attacked and attacked <= refused
    assert all(len(record["filtered"]) >= 3 for record in result.records if record["did_filter"]), "S^f has a floor"
