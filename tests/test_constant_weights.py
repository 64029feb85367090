"""A client that sends the same number for all of its weights, and is the first one that the filter visits.

With R({}) = 0, adding any first client to the empty set gains almost 10, so DGF keeps it, whatever it sent. The average
of its weights with those of any other client is worse than its own weights, so DGF keeps nobody else: the next model is
what the attacker sent. With the default, the first client must be better than the current global model.
"""

from dataclasses import dataclass
from typing import Any

import pytest
import torch

import filfl
from filfl.attacks import Attack
from filfl.availability.base import Ids
from filfl.config.experiment import Experiment, shipped_names
from filfl.rng import stream


@dataclass(frozen=True, kw_only=True)
class Constant(Attack):
    """The client that is visited first in round `at` sends ones."""

    at: int

    def bad(self, num_clients: int, seed: int) -> Ids:
        return stream(seed, self.at, "shuffle").permutation(num_clients)[:1]

    def sent(self, w: torch.Tensor, w_t: torch.Tensor) -> torch.Tensor:
        return torch.ones_like(w)


SEEDS = range(3)


def attacked(seed: int, at: int, **changes: Any) -> tuple[int, list[dict[str, Any]], float]:
    """The attacker, the records, and the accuracy at the end of a run of three rounds."""
    config = {"rounds": 3, "seed": seed, "filter.period": 1, "selection.k": 3, "filter.honest_gain": False}
    config |= {
        "attack.name": "test_constant_weights:Constant",
        "attack.at": at,
        "training.epochs": 4,
        "training.lr": 0.2,
    }
    result = filfl.simulate(config | {"data.clients": 10, "execution.mode": "serial"} | changes)
    return result.records[at - 1]["considered"][0], result.records, result.accuracy[-1]


@pytest.mark.parametrize("at", [1, 3])
@pytest.mark.parametrize("seed", SEEDS)
def test_the_default_stops_it_and_zero_does_not(seed: int, at: int) -> None:
    attacker, records, lost = attacked(seed, at, **{"filter.name": "dgf", "filter.empty": "zero"})
    assert records[at - 1]["filtered"] == records[at - 1]["selected"] == [attacker] and not records[at - 1]["refused"]
    assert lost < 0.2, "a model of ones guesses, and is not trained any further"

    same, records, accuracy = attacked(seed, at, **{"filter.name": "dgf"})
    assert same == attacker and attacker not in records[at - 1]["filtered"] and records[at - 1]["filtered"]
    assert records[at - 1]["trace"][0]["client"] == attacker and not records[at - 1]["trace"][0]["kept"]
    assert accuracy > 0.6


@pytest.mark.parametrize("seed", SEEDS)
def test_rgf_keeps_it_with_zero_only(seed: int) -> None:
    config = {"filter.name": "rgf", "rounds": 2}
    chance = [attacked(seed, 2, **config, **{"filter.empty": e})[1][1]["trace"][0]["p"] for e in ("zero", "global")]
    assert chance[0] > 0.5 and chance[1] == 0


@pytest.mark.parametrize("filter", ["local-search", "prune"])
def test_filters_that_never_ask_for_the_empty_set_resist_in_any_case(filter: str) -> None:
    for empty in ("zero", "global"):
        attacker, records, accuracy = attacked(0, 1, **{"filter.name": filter, "filter.empty": empty})
        assert not any(attacker in record["filtered"] for record in records) and accuracy > 0.6


def test_it_costs_one_evaluation_more() -> None:
    for name, reward, plain in (("dgf", "average", 2 * 10 - 1), ("dgf", "ensemble", 10), ("prune", "ensemble", 10)):
        config = {"filter.name": name, "filter.reward": reward, "filter.screen": False, "rounds": 1}
        counts = [attacked(0, 1, **config, **{"filter.empty": e})[1][0]["evaluations"] for e in ("zero", "global")]
        assert counts == [plain, plain + (name == "dgf")], "prune never asks for the empty set"


NOT_OF_THE_PAPER = ("demo", "arena", "arena-shares", "arena-filtering-set", "arena-femnist")


@pytest.mark.parametrize("name", [name for name in shipped_names() if name not in NOT_OF_THE_PAPER])
def test_the_experiments_of_the_paper_keep_zero(name: str) -> None:
    experiment = Experiment.load(name)
    for scale in (None, *experiment.scales):
        scaled = experiment.at_scale(scale)
        assert {scaled.config({}, arm).filter.empty for arm in scaled.arms} == {"zero"}


@pytest.mark.parametrize("name", NOT_OF_THE_PAPER)
def test_others_have_the_safe_default(name: str) -> None:
    experiment = Experiment.load(name)
    assert {experiment.config({}, arm).filter.empty for arm in experiment.arms} == {"global"}
