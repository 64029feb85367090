"""The guard: what it refuses, and the reasons."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from filfl.aggregation.base import Admitted
from filfl.aggregation.mean import ByExamples, Mean
from filfl.core.clients import Failure, Update
from filfl.core.guard import guard_updates
from filfl.weights import Layout, Weights

LAYOUT = Layout.of(nn.Linear(2, 1))
CPU = torch.device("cpu")


def weights(*values: float, dtype: torch.dtype = torch.float32) -> Weights:
    return Weights(torch.tensor(values, dtype=dtype), torch.zeros(0, dtype=torch.int64))


def refusal(update: Update | Failure) -> str:
    """The reason for refusing client 7, between two clients that pass."""
    good = Update(weights(1, 2, 3), 5, 0.1)
    admitted, refused = guard_updates({1: good, 7: update, 9: good}, LAYOUT, CPU)
    assert list(admitted) == [1, 9] and list(refused) == [7]
    return refused[7]


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (weights(1, 2), "shape (2,) instead of (3,)"),
        (weights(1, 2, 3, dtype=torch.float64), "dtype torch.float64"),
        (weights(1, math.nan, 3), "weight has a value that is not finite (nan)"),
        (weights(1, 2, -math.inf), "bias has a value that is not finite (-inf)"),
        ({"weight": torch.ones(1, 2)}, "key bias is missing"),
        ({"weight": torch.ones(2), "bias": torch.ones(1)}, "weight has shape (2,) instead of (1, 2)"),
        ({"weight": torch.ones(1, 2), "bias": torch.ones(1).half()}, "bias has dtype torch.float16"),
        ({"weight": torch.ones(1, 2), "bias": torch.ones(1), "more": torch.ones(1)}, "key more is not in the model"),
        (Weights(torch.ones(3), torch.zeros(1, dtype=torch.int64)), "integer buffers"),
    ],
)
def test_weights_that_cannot_be_averaged_are_refused(given, reason: str) -> None:
    assert reason in refusal(Update(given, 5, 0.1))


@pytest.mark.parametrize("count", [0, -3, 2.5, math.nan, True, None, "12", 10**12])
def test_invalid_numbers_of_examples_are_refused(count) -> None:
    assert "number of examples" in refusal(Update(weights(1, 2, 3), count, 0.1))


@pytest.mark.parametrize(
    "update",
    [
        None,
        Update(None, 5, 0.1),
        Update([1.0], 5, 0.1),
        Update(weights(1, 2, 3), 5, None),
        Update(weights(1, 2, 3), 5, "low"),
        Update({"weight": "abc", "bias": torch.ones(1)}, 5, 0.1),
        Update({"weight": np.array(["a"]), "bias": None}, 5, 0.1),
        Update({1: torch.ones(1)}, 5, 0.1),
    ],
)
def test_an_unusable_update_affects_no_other_client(update) -> None:
    first, last = Update(weights(1, 2, 3), 5, 0.1), Update(weights(4, 5, 6), 6, 0.2)
    admitted, refused = guard_updates({1: first, 7: update, 9: last}, LAYOUT, CPU)
    assert list(refused) == [7] and refused[7]
    assert {k: (each.weights.vector.tolist(), each.num_examples) for k, each in admitted.items()} == {
        1: ([1, 2, 3], 5),
        9: ([4, 5, 6], 6),
    }


def test_numbers_of_examples_may_have_any_integer_type() -> None:
    admitted, _ = guard_updates({7: Update(weights(1, 2, 3), np.int64(5), 0.1)}, LAYOUT, CPU)
    assert admitted[7].num_examples == 5 and type(admitted[7].num_examples) is int


def test_a_failure_keeps_its_reason() -> None:
    assert refusal(Failure("training raised ValueError: no")) == "training raised ValueError: no"


def test_valid_weights_pass_as_vector_and_as_state_dict() -> None:
    state = {"bias": torch.tensor([3.0]), "weight": torch.tensor([[1.0, 2.0]])}
    admitted, refused = guard_updates({1: Update(weights(1, 2, 3), 5, 0.1), 2: Update(state, 6, math.nan)}, LAYOUT, CPU)
    assert not refused
    assert torch.equal(admitted[1].weights.vector, admitted[2].weights.vector)


def test_means() -> None:
    updates = [Admitted(weights(0, 0, 0), 1, 0.0), Admitted(weights(4, 8, 12), 3, 0.0)]
    assert Mean()(1, {}, weights(9, 9, 9), updates)[1].vector.tolist() == [2, 4, 6]
    assert ByExamples()(1, {}, weights(9, 9, 9), updates)[1].vector.tolist() == [3, 6, 9]
    assert Mean()(1, {}, weights(9, 9, 9), [*updates, updates[1]])[1].vector.tolist() == pytest.approx(
        [8 / 3, 16 / 3, 8]
    )


def test_integer_buffers_are_those_of_the_first_client() -> None:
    updates = [Admitted(Weights(torch.ones(1), torch.tensor([n])), 1, 0.0) for n in (7, 100)]
    assert Mean()(1, {}, updates[0].weights, updates)[1].integers.tolist() == [7]
