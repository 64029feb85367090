"""The guard: what it refuses, and the reasons."""

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import replace

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given
from torch import nn

import filfl
from filfl import FederatedData
from filfl.aggregation.base import PIECE, Admitted
from filfl.aggregation.mean import ByExamples, Mean
from filfl.core.clients import Failure, Update
from filfl.core.guard import Guard, RoundGuard, beyond_others, distance, medians_of_others
from filfl.core.queries import LossQuery
from filfl.errors import one_line
from filfl.weights import Layout, Weights
from fuzz.messages import lying

LAYOUT = Layout.of(nn.Linear(2, 1))


def guard(w_t: Weights | None = None, **bounds: float) -> RoundGuard:
    return RoundGuard(Guard(**bounds), LAYOUT, w_t or weights(0, 0, 0))


def weights(*values: float, dtype: torch.dtype = torch.float32) -> Weights:
    return Weights(torch.tensor(values, dtype=dtype), torch.zeros(0, dtype=torch.int64))


def refusal(update: Update | Failure) -> str:
    """The reason for refusing client 7, between two clients that pass."""
    good = Update(weights(1, 2, 3), 5, 0.1)
    admitted, refused = guard().updates({1: good, 7: update, 9: good})
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


NORM = Layout.of(nn.BatchNorm1d(2))


def batch_norm(variance: float, counter: int) -> Weights:
    """Weights of a BatchNorm of two features with this variance of the first."""
    state = {**nn.BatchNorm1d(2).state_dict(), "running_var": torch.tensor([variance, 1.0])}
    return NORM.flatten({**state, "num_batches_tracked": torch.tensor(counter)})


@pytest.mark.parametrize(
    ("variance", "counter", "reason"),
    [
        (-0.5, 7, "running_var has a value that no training gives (-0.5)"),
        (1.0, -1, "num_batches_tracked has a value that no training gives (-1)"),
        (1.0, 2**63 - 1, "num_batches_tracked has a value that no training gives (9.22337e+18)"),
        (0.0, 7, None),
        (1.0, 0, None),
    ],
)
def test_statistics_that_no_training_gives_are_refused(variance: float, counter: int, reason: str | None) -> None:
    guard = RoundGuard(Guard(), NORM, batch_norm(1.0, 3))
    _, refused = guard.updates({k: Update(batch_norm(*given), 5, 0.1) for k, given in enumerate([(1.0, 7)] * 2)})
    assert not refused
    _, refused = guard.updates({7: Update(batch_norm(variance, counter), 5, 0.1)})
    assert (reason in refused[7]) if reason else not refused


def test_a_negative_variance_of_the_global_model_is_not_the_fault_of_a_client() -> None:
    guard = RoundGuard(Guard(), NORM, batch_norm(-0.5, 3))
    assert not guard.updates({7: Update(batch_norm(-0.2, 7), 5, 0.1)})[1]


def test_a_client_with_statistics_that_no_training_gives_changes_no_other_client(blobs: FederatedData) -> None:
    """The counter divides where momentum = None: with -1 no client could train any more."""

    class Cumulative(nn.Sequential):
        def __init__(self) -> None:
            super().__init__(nn.BatchNorm1d(4, momentum=None), nn.Linear(4, 3))

    def poison(update: Update, rng: random.Random) -> Update:
        assert isinstance(update.weights, Weights)
        return replace(update, weights=Weights(update.weights.vector, update.weights.integers - 10**6))

    with lying(random.Random(0), 0.3, [lambda rng, update, w_t: poison(update, rng)]):
        result = filfl.simulate({"rounds": 4, "selection.k": 6}, data=blobs, model=Cumulative, progress=False)
    refused = [reason for record in result.records for reason in record["refused"].values()]
    assert refused and all("num_batches_tracked has a value" in reason for reason in refused)


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
    admitted, refused = guard().updates({1: first, 7: update, 9: last})
    assert list(refused) == [7] and refused[7]
    assert {k: (each.weights.vector.tolist(), each.num_examples) for k, each in admitted.items()} == {
        1: ([1, 2, 3], 5),
        9: ([4, 5, 6], 6),
    }


def test_numbers_of_examples_may_have_any_integer_type() -> None:
    admitted, _ = guard().updates({7: Update(weights(1, 2, 3), np.int64(5), 0.1)})
    assert admitted[7].num_examples == 5 and type(admitted[7].num_examples) is int


def test_a_failure_keeps_its_reason() -> None:
    assert refusal(Failure("training raised ValueError: no")) == "training raised ValueError: no"


def test_valid_weights_pass_as_vector_and_as_state_dict() -> None:
    state = {"bias": torch.tensor([3.0]), "weight": torch.tensor([[1.0, 2.0]])}
    admitted, refused = guard().updates({1: Update(weights(1, 2, 3), 5, 0.1), 2: Update(state, 6, math.nan)})
    assert not refused
    assert torch.equal(admitted[1].weights.vector, admitted[2].weights.vector)


def updates(norms: Sequence[float], examples: Sequence[int] | None = None) -> dict[int, Update]:
    """Clients 0, 1, ... whose updates from 0 have these norms."""
    return {k: Update(weights(x, 0, 0), examples[k] if examples else 5, 0.1) for k, x in enumerate(norms)}


@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([1, 7, PIECE - 1, PIECE, 2 * PIECE + 3]),
    st.sampled_from([1e-3, 1, 1e30]),
)
def test_the_norm_of_an_update_in_pieces(seed: int, size: int, scale: float) -> None:
    rng = torch.Generator().manual_seed(seed)
    a, b = (torch.randn(size, generator=rng) * scale for _ in range(2))
    assert distance(a, b) == pytest.approx(float((a.double() - b.double()).norm()), rel=1e-5)


def test_norms_are_compared_with_the_median_of_the_others_by_hand() -> None:
    admitted, refused = guard(norm=10).updates(updates([1, 2, 3, 31, 29]))
    assert list(admitted) == [0, 1, 2, 4]
    # The others of client 3 are 1, 2, 3 and 29; the larger of the two middle ones is 3.
    assert refused == {3: "the norm of the update is 31, more than 10 times the median of the other clients (3)"}


def test_an_update_smaller_than_the_model_always_passes() -> None:
    replies = updates([1e-9, 1e-9, 1e-9, 40])
    assert list(guard(weights(0, 0, 0)).updates(replies)[1]) == [3]
    model = {k: Update(weights(41 + u.weights.vector[0], 0, 0), 5, 0.1) for k, u in replies.items()}
    assert not guard(weights(41, 0, 0)).updates(model)[1]


def test_with_fewer_than_three_updates_the_model_is_the_measure() -> None:
    for others in ([], [0.0]):
        assert not guard(norm=10).updates(updates([9, *others]))[1], "a model of norm 0 counts as 1"
        assert guard(norm=10).updates(updates([11, *others]))[1] == {
            0: "the norm of the update is 11, more than 10 times the norm of the model (1)"
        }


def test_a_finite_weight_whose_difference_overflows_is_refused() -> None:
    replies = {k: Update(weights(x, 0, 0), 5, 0.1) for k, x in enumerate([-3e38, -3e38, -3e38, 3e38])}
    assert guard(weights(-3e38, 0, 0)).updates(replies)[1].keys() == {3}


def test_numbers_of_examples_are_compared_by_hand() -> None:
    found = guard(examples=10).updates(updates([1] * 5, [1, 2, 3, 31, 30]))[1]
    assert found == {3: "it claims 31 examples, more than 10 times the median of the other clients (3)"}
    assert not guard(examples=10).updates(updates([1], [10**9]))[1], "its weight in the mean is 1 anyway"


def test_of_two_clients_whose_numbers_of_examples_contradict_each_other_none_is_believed() -> None:
    assert not guard(examples=10).updates(updates([1, 1], [5, 50]))[1]
    _, refused = guard(examples=10).updates(updates([1, 1], [5, 51]))
    assert refused == {
        0: "it claims 5 examples, and the only other client 51; one of the two must be wrong",
        1: "it claims 51 examples, more than 10 times the median of the other clients (5)",
    }


def test_later_replies_are_compared_with_the_earlier_ones_of_the_round() -> None:
    this = guard(norm=10)
    assert not this.updates(updates([1, 2]))[1]
    assert this.updates({7: Update(weights(21, 0, 0), 5, 0.1)})[1].keys() == {7}
    assert not this.updates({8: Update(weights(19, 0, 0), 5, 0.1)})[1]


@pytest.mark.parametrize("loss", [math.inf, -math.inf, 1e308, -1e39, 101.0])
def test_a_train_loss_that_is_not_credible_is_left_out_and_noted(loss: float) -> None:
    this, replies = guard(), updates([1, 1, 1, 1])
    replies[2] = replace(replies[2], train_loss=loss)
    admitted, refused = this.updates(replies)
    assert not refused and math.isnan(admitted[2].train_loss) and admitted[1].train_loss == 0.1
    assert len(this.notes) == 1 and this.notes[0].startswith("client 2: the train loss is ")


@given(
    st.dictionaries(st.integers(0, 99), st.floats(0, 1e6), min_size=2, max_size=9),
    st.floats(0, allow_nan=False) | st.just(math.inf),
)
def test_the_median_of_the_others(values: dict[int, float], own: float) -> None:
    found = medians_of_others(values)
    for k in values:
        assert found[k] == statistics.median_high([value for other, value in values.items() if other != k])
    k = min(values)
    assert medians_of_others({**values, k: own})[k] == found[k], "a client cannot change what it is compared with"


@given(st.lists(st.floats(0.1, 10), min_size=3, max_size=9), st.data())
def test_a_minority_of_liars_cannot_have_honest_clients_refused(honest: list[float], data: st.DataObject) -> None:
    lies = data.draw(st.lists(st.floats(0, allow_infinity=True), max_size=(len(honest) - 1) // 2))
    values = dict(enumerate([*honest, *lies]))
    refused = beyond_others(values, 100.0, "the loss")
    assert all(k >= len(honest) for k in refused)
    assert all(k in refused for k in values if values[k] > 1000)


@pytest.mark.parametrize(("bound", "refused"), [(100.0, []), (3.0, [3])])
def test_answers_are_compared_with_the_option(bound: float, refused: list[int]) -> None:
    losses = {1: 1.0, 2: 1.1, 3: 5.0, 4: 0.9}
    usable, reasons = guard(answers=bound).answers(losses, LossQuery("validation"))
    assert list(reasons) == refused and list(usable) == [k for k in losses if k not in refused]


def test_where_most_losses_are_not_finite_the_model_is_to_blame() -> None:
    assert not beyond_others({1: math.nan, 2: math.nan, 3: math.inf, 4: 0.1}, 100, "the loss")
    assert not beyond_others({1: math.nan, 2: math.nan}, 100, "the loss")
    assert beyond_others({1: math.nan, 2: 0.1}, 100, "the loss") == {1: "the loss is not finite (nan)"}
    assert beyond_others({1: 1e308}, 100, "the loss") == {1: "the loss is not finite (1e+308)"}


@given(st.text() | st.text(alphabet="ab\x1b\x9b\x00\n\r\u2028\u202e\u200b\ud800 ", max_size=300))
def test_texts_from_outside_become_one_printable_line(text: str) -> None:
    line = one_line(text)
    assert line.isprintable() and len(line) <= 200 and line == line.strip()
    assert one_line(line) == line
    if text.isprintable() and len(text) <= 200:
        assert line == " ".join(text.split())


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
