"""The ensemble reward, worked out by hand."""

import math

import pytest
import torch
from torch import Tensor

from filfl.evaluation import cross_entropy, mean_squared_error
from filfl.filtering.rewards import EnsembleReward

# Two samples, two classes; the first sample is of class 0, the second of class 1. Written as the odds that a client
# gives to class 0, outputs are (log odds, 0).
TARGETS = torch.tensor([0, 1])


def says(*odds: float) -> Tensor:
    return torch.tensor([[math.log(o), 0.0] for o in odds])


def nats(*shares: float) -> float:
    """The reward of giving the right classes these probabilities."""
    return 10 + sum(math.log(p) for p in shares) / len(shares)


def R(*clients: Tensor, empty: Tensor | None = None) -> EnsembleReward:
    return EnsembleReward(dict(enumerate(clients)), TARGETS, cross_entropy, empty)


def test_rewards_of_two_clients() -> None:
    # Client 0 says 8 : 1 and 1 : 1, client 1 says 1 : 2 and 1 : 4. The mean output is the geometric mean of the odds:
    # 2 : 1 and 1 : 2.
    ensemble = R(says(8, 1), says(1 / 2, 1 / 4))
    assert ensemble(frozenset({0})) == pytest.approx(nats(8 / 9, 1 / 2), abs=1e-6)
    assert ensemble(frozenset({1})) == pytest.approx(nats(1 / 3, 4 / 5), abs=1e-6)
    assert ensemble(frozenset({0, 1})) == pytest.approx(nats(2 / 3, 2 / 3), abs=1e-6)
    assert ensemble(frozenset()) == 0.0


def test_its_cost_is_one_pass_a_client_whatever_is_asked() -> None:
    ensemble = R(says(8, 1), says(1, 4))
    assert ensemble.evaluations == 2 and ensemble.knows(frozenset({0, 1}))
    ensemble(frozenset({0, 1}))
    assert ensemble.evaluations == 2


def test_the_empty_set_may_stand_for_the_current_model() -> None:
    ensemble = R(says(8, 1), empty=says(3, 1 / 3))
    assert ensemble(frozenset()) == pytest.approx(nats(3 / 4, 3 / 4), abs=1e-6)
    assert ensemble.evaluations == 2


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_who_answers_with_no_number_spoils_its_own_sets_alone(broken: float) -> None:
    ensemble = R(says(8, 1), torch.tensor([[broken, 0.0], [0.0, 0.0]]), says(1 / 2, 1 / 4))
    assert ensemble(frozenset({0, 1, 2})) == ensemble(frozenset({1})) == 0.0
    assert ensemble(frozenset({0, 2})) == pytest.approx(nats(2 / 3, 2 / 3), abs=1e-6)
    assert R(torch.full((2, 2), broken))(frozenset({0})) == 0.0


def test_outputs_may_be_numbers() -> None:
    targets = torch.tensor([1.0, 3.0])
    ensemble = EnsembleReward({7: torch.tensor([0.0, 0.0]), 9: torch.tensor([4.0, 4.0])}, targets, mean_squared_error)
    assert ensemble(frozenset({7})) == 10 - (1 + 9) / 2
    assert ensemble(frozenset({7, 9})) == 10 - (1 + 1) / 2
