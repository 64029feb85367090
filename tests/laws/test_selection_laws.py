"""Laws of the selections."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from filfl.selection import OwnSelection
from filfl.selection.divfl import DivFL, distances, gain, lazy_greedy, reversed_greedy
from filfl.selection.power_of_choice import PowerOfChoice
from filfl.selection.random import Random, RandomWithReplacement


@dataclass
class Answers:
    """Clients with given answers."""

    loss: Mapping[int, float] = field(default_factory=dict)
    gradient: Mapping[int, torch.Tensor] = field(default_factory=dict)
    update: Mapping[int, torch.Tensor] = field(default_factory=dict)
    examples: Mapping[int, int] = field(default_factory=dict)
    asked: list[int] = field(default_factory=list)

    def losses(self, ids: Sequence[int]) -> Mapping[int, float]:
        self.asked = list(ids)
        return {k: self.loss[k] for k in ids if k in self.loss}

    def gradients(self, ids: Sequence[int]) -> Mapping[int, torch.Tensor]:
        return {k: self.gradient[k] for k in ids}

    def updates(self, ids: Sequence[int]) -> Mapping[int, torch.Tensor]:
        return {k: self.update[k] for k in ids}

    def num_examples(self, ids: Sequence[int]) -> np.ndarray:
        return np.array([self.examples[k] for k in ids])


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


losses = st.dictionaries(st.integers(0, 50), st.one_of(st.floats(0, 9), st.integers(0, 3)), min_size=1)


@given(losses, st.integers(1, 60))
def test_power_of_choice_picks_the_highest_losses(loss: dict[int, float], k: int) -> None:
    chosen = PowerOfChoice()(sorted(loss), k, Answers(loss=loss), rng())
    assert len(chosen) == len(set(chosen)) == min(k, len(loss))
    left = [loss[i] for i in loss if i not in chosen]
    assert min(loss[i] for i in chosen) >= max(left, default=-math.inf)


@given(losses, st.integers(0, 100))
def test_power_of_choice_asks_d_candidates(loss: dict[int, float], seed: int) -> None:
    pool, answers = sorted(loss), Answers(loss=loss, examples=dict.fromkeys(loss, 3))
    d = max(1, len(pool) // 2)
    chosen = PowerOfChoice(d=d)(pool, 1, answers, rng(seed))
    assert len(set(answers.asked)) == min(d, len(pool))
    assert set(chosen) <= set(answers.asked) <= set(pool)


def test_power_of_choice_draws_candidates_in_proportion_to_their_data() -> None:
    answers = Answers(loss={0: 1.0, 1: 1.0}, examples={0: 9, 1: 1})
    drawn = [PowerOfChoice(d=1)([0, 1], 1, answers, rng(seed))[0] for seed in range(2000)]
    assert 0.08 < np.mean(drawn) < 0.12


def test_power_of_choice_breaks_ties_by_the_lower_id() -> None:
    assert PowerOfChoice()([7, 3, 5], 2, Answers(loss={7: 1.0, 3: 1.0, 5: 1.0}), rng()) == [3, 5]


def test_power_of_choice_skips_missing_answers_and_takes_nan_last() -> None:
    answers = Answers(loss={1: 0.5, 2: math.nan, 3: 2.0})
    assert PowerOfChoice()([1, 2, 3, 4], 3, answers, rng()) == [3, 1, 2]


@given(st.lists(st.integers(0, 99), unique=True, min_size=1), st.integers(1, 20), st.integers(0, 99))
def test_random_selections_draw_k_of_the_pool(pool: list[int], k: int, seed: int) -> None:
    chosen = Random()(pool, k, Answers(), rng(seed))
    assert len(set(chosen)) == len(chosen) == min(k, len(pool)) and set(chosen) <= set(pool)
    drawn = RandomWithReplacement()(pool, k, Answers(), rng(seed))
    assert len(drawn) == k and set(drawn) <= set(pool)


@given(st.lists(st.integers(0, 10**6), unique=True, min_size=1, max_size=60), st.integers(1, 20), st.integers(0, 99))
def test_an_array_and_a_list_as_pool_give_equal_choices(ids: list[int], k: int, seed: int) -> None:
    pool = sorted(ids)
    answers = Answers(
        loss={i: float(i % 7) for i in pool},
        gradient={i: torch.tensor([i % 5, i % 3], dtype=torch.float32) for i in pool},
        examples={i: 1 + i % 4 for i in pool},
    )
    for selection in (Random(), RandomWithReplacement(), PowerOfChoice(d=1 + len(pool) // 2), DivFL()):
        as_list = list(selection(pool, k, answers, rng(seed)))
        assert list(selection(np.array(pool), k, answers, rng(seed))) == as_list


def plain_greedy(D: np.ndarray, k: int) -> list[int]:
    """Plain greedy facility location: evaluate every candidate in every step."""
    nearest, chosen = np.full(len(D), D.max(initial=0.0)), []
    for _ in range(min(k, len(D))):
        left = [i for i in range(len(D)) if i not in chosen]
        best = max(left, key=lambda i: (gain(D, nearest, i), -i))
        chosen.append(best)
        nearest = np.minimum(nearest, D[:, best])
    return chosen


@given(st.integers(1, 12), st.integers(1, 12), st.integers(0, 10_000), st.booleans())
def test_lazy_greedy_equals_plain_greedy(n: int, k: int, seed: int, ties: bool) -> None:
    points = rng(seed).integers(3, size=(n, 2)).astype(float) if ties else rng(seed).normal(size=(n, 2))
    D = distances([torch.tensor(p) for p in points])
    assert lazy_greedy(D, k) == plain_greedy(D, k)


@given(st.integers(1, 8), st.integers(1, 20), st.integers(0, 999))
def test_distances_are_euclidean(n: int, d: int, seed: int) -> None:
    points = torch.tensor(rng(seed).normal(size=(n, d)), dtype=torch.float32)
    direct = (points[:, None].double() - points[None].double()).norm(dim=-1)
    assert np.allclose(distances(list(points)), direct.numpy(), atol=1e-6)


@pytest.mark.parametrize("of", ["gradients", "updates"])
def test_divfl_takes_one_client_of_each_cluster(of: str) -> None:
    # Two clients near (0, 0), three near (9, 0), one at (0, 9): three choices must take one of each.
    points = {1: (0, 0), 2: (0, 0.1), 3: (9, 0), 4: (9, 0.1), 5: (9, 0.2), 6: (0, 9)}
    vectors = {k: torch.tensor(p, dtype=torch.float32) for k, p in points.items()}
    for seed in range(5):
        chosen = set(DivFL(of=of)(sorted(points), 3, Answers(gradient=vectors, update=vectors), rng(seed)))
        assert len(chosen & {1, 2}) == len(chosen & {3, 4, 5}) == len(chosen & {6}) == 1


def test_the_largest_sum_takes_the_outliers_by_hand() -> None:
    # On a line, 10 has the largest sum of distances, 31. If 6 joins it, the distances to the nearest of the two are
    # 6, 5, 4, 0 and 0; with 0, 1 or 2 they have the sums 7, 6 and 7.
    D = distances([torch.tensor([float(x)]) for x in (0, 1, 2, 6, 10)])
    assert reversed_greedy(D, 2) == [4, 3]
    assert lazy_greedy(D, 2) == [2, 3]
    assert sorted(reversed_greedy(D, 9)) == [0, 1, 2, 3, 4]
    vectors = {k: torch.tensor([float(x)]) for k, x in enumerate((0, 1, 2, 6, 10))}
    assert DivFL(sum="largest")(list(vectors), 2, Answers(gradient=vectors), rng()) == [4, 3]


def test_divfl_chooses_at_random_among_clients_without_updates() -> None:
    unknown = {k: torch.zeros(3) for k in range(20)}
    first = {DivFL(of="updates")(list(unknown), 2, Answers(update=unknown), rng(seed))[0] for seed in range(40)}
    assert len(first) > 5


def test_what_the_server_keeps_for_a_selection() -> None:
    assert [DivFL(of=of).remembers for of in ("gradients", "updates", "predictions")] == [
        None,
        "updates",
        "predictions",
    ]
    assert PowerOfChoice().remembers is None
    assert RandomWithReplacement().with_replacement and not Random().with_replacement


def test_a_function_states_in_attributes_what_it_needs() -> None:
    def last(pool: np.ndarray, k: int, ask: Answers, rng: np.random.Generator) -> list[int]:
        return list(pool[-k:])

    plain = OwnSelection(function=last, k=2)
    assert (plain.with_replacement, plain.remembers) == (False, None)
    assert plain([1, 2, 3], 2, Answers(), rng()) == [2, 3]
    last.with_replacement, last.remembers = True, "updates"
    assert (plain.with_replacement, plain.remembers) == (True, "updates")
