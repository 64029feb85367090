"""Laws of the average reward: running sums, caching and the number of evaluations."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from filfl.filtering import Filtering, dgf, opt, rgf
from filfl.filtering.rewards import AverageReward

subsets = st.lists(st.frozensets(st.integers(0, 5), min_size=1), min_size=1, max_size=30)


@given(subsets, st.integers(0, 1000), st.sampled_from([torch.float32, torch.float64]))
def test_running_sums_equal_direct_means(asked: list[frozenset[int]], seed: int, dtype: torch.dtype) -> None:
    rng = np.random.default_rng(seed)
    # The weights differ by many orders of magnitude: subtracting a large client must not cancel the small ones.
    scales = 10.0 ** rng.integers(-12, 13, size=6)
    weights = {k: torch.tensor(rng.normal(size=5) * scales[k], dtype=dtype) for k in range(6)}
    before = {k: w.clone() for k, w in weights.items()}
    means: list[torch.Tensor] = []

    def remember(mean: torch.Tensor) -> float:
        means.append(mean.clone())
        return 1.0

    R = AverageReward(weights, remember)
    for subset in asked:
        R(subset)
    distinct = list(dict.fromkeys(asked))
    assert R.evaluations == len(means) == len(distinct)
    for subset, mean in zip(distinct, means, strict=True):
        direct = torch.stack([weights[k].double() for k in sorted(subset)]).mean(dim=0)
        largest = max(float(weights[k].abs().max()) for k in subset)
        assert mean.dtype == dtype
        assert torch.allclose(mean.double(), direct, rtol=1e-6, atol=1e-7 * largest)
    assert all(torch.equal(weights[k], before[k]) for k in weights), "the weights of the clients must not change"


def test_removing_a_huge_client_loses_no_precision() -> None:
    weights = {k: torch.full((2,), 3e-6) for k in range(5)} | {9: torch.full((2,), 1e12)}
    means: list[float] = []
    R = AverageReward(weights, lambda w: means.append(float(w[0])) or 1.0)
    R(frozenset(weights))
    R(frozenset(range(5)))  # one step from the set before: subtracting 1e12 would leave 0
    assert means[1] == pytest.approx(3e-6)


@given(subsets, st.permutations(range(6)), st.integers(0, 1000), st.sampled_from([0, 3, 10]))
def test_a_mean_does_not_depend_on_the_order_of_evaluation(
    asked: list[frozenset[int]], order: list[int], seed: int, spread: int
) -> None:
    rng = np.random.default_rng(seed)
    scales = 10.0 ** rng.integers(-spread, spread + 1, size=6)
    # In float64 a mean has as many digits as its sum. Rounding to float32 would hide lost digits.
    weights = {k: torch.tensor(rng.normal(size=7) * scales[k]) for k in range(6)}

    def means(sets: list[frozenset[int]]) -> dict[frozenset[int], bytes]:
        seen: list[bytes] = []
        R = AverageReward(weights, lambda w: float(seen.append(w.numpy().tobytes()) or 0))
        distinct = list(dict.fromkeys(sets))
        for subset in distinct:
            R(subset)
        return dict(zip(distinct, seen, strict=True))

    other_order = sorted(asked, key=lambda subset: [order[k] for k in sorted(subset)])
    assert means(asked) == means(other_order)


@given(st.integers(1, 9), st.integers(1, 20), st.integers(0, 1000), st.booleans())
def test_evaluating_ahead_changes_no_decision_and_no_count(n: int, at_once: int, seed: int, randomized: bool) -> None:
    rng = np.random.default_rng(seed)
    weights = {k: torch.tensor(rng.normal(size=3)) for k in range(n)}
    batch_sizes: list[int] = []

    def each(work: Callable[[int], Any], sets: list[int]) -> list[Any]:
        batch_sizes.append(len(sets))
        return [work(members) for members in sets]

    def loss(w: torch.Tensor) -> float:
        return float(w.norm())

    def found(R: AverageReward) -> tuple[Filtering, int]:
        filter = rgf if randomized else dgf
        return filter(list(weights), R, np.random.default_rng(seed)), R.evaluations

    plain = found(AverageReward(weights, loss))
    assert found(AverageReward(weights, loss, at_once=at_once, each=each)) == plain
    if n > 1 and at_once > 1:
        levels = max(1, int(np.log2((at_once + 2) / 2)))  # 2 sets for this step, 4 more for the next, 8 more, ...
        steps_at_a_time = -(-(n - 1) // levels)
        assert sum(size > 1 for size in batch_sizes) <= steps_at_a_time


def test_opt_evaluates_at_once_sets_in_parallel() -> None:
    weights = {k: torch.tensor([float(k)]) for k in range(5)}
    batch_sizes: list[int] = []

    def each(work: Callable[[int], Any], sets: list[int]) -> list[Any]:
        batch_sizes.append(len(sets))
        return [work(members) for members in sets]

    R = AverageReward(weights, lambda w: float((w - 2.5).abs()), at_once=8, each=each)
    assert opt(list(weights), R) == opt(list(weights), AverageReward(weights, lambda w: float((w - 2.5).abs())))
    assert batch_sizes == [8, 8, 8, 7]
    assert R.evaluations == 31


class Counting(torch.Tensor):
    """A tensor that counts the additions it takes part in."""

    additions = 0

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        Counting.additions += getattr(func, "__name__", "") in ("__iadd__", "__isub__", "add_", "sub_", "add", "sub")
        return super().__torch_function__(func, types, args, kwargs or {})


@pytest.mark.parametrize("keeps", [0.1, 0.5, 0.9])
def test_a_greedy_step_costs_a_constant_number_of_additions(keeps: float) -> None:
    n = 60
    rng = np.random.default_rng(0)
    weights = {k: torch.tensor(rng.normal(size=2)).as_subclass(Counting) for k in range(n)}
    R = AverageReward(weights, lambda w: 1.0)
    Counting.additions = 0
    noisy = {}  # rewards that keep about this share of the clients
    dgf(list(weights), lambda S: (R(S), noisy.setdefault(S, len(S) * (keeps - 0.5) + rng.normal()))[1])
    assert R.evaluations == 2 * n - 1
    assert Counting.additions < 6 * n, "summing every set from scratch takes about n^2 = 3600"


def constant(loss: float) -> AverageReward:
    return AverageReward({1: torch.ones(2), 2: torch.zeros(2)}, lambda w: loss)


@pytest.mark.parametrize(
    ("loss", "reward"), [(2.5, 7.5), (0.0, 10.0), (10.0, 0.0), (37.0, 0.0), (math.nan, 0.0), (math.inf, 0.0)]
)
def test_reward_is_ten_minus_the_loss_cut_off_at_zero(loss: float, reward: float) -> None:
    assert constant(loss)(frozenset({1})) == reward


def test_the_empty_set_needs_no_evaluation() -> None:
    R = constant(1.0)
    assert R(frozenset()) == 0.0
    assert R.evaluations == 0


def test_the_empty_set_can_be_the_global_model() -> None:
    R = AverageReward({1: torch.ones(2)}, lambda w: float(w.sum()), empty=lambda: torch.full((2,), 0.5))
    assert R(frozenset()) == 9.0 and R(frozenset({1})) == 8.0
    assert R.evaluations == 2


def test_dgf_needs_2n_minus_1_evaluations_and_opt_needs_all() -> None:
    rng = np.random.default_rng(0)
    weights = {k: torch.tensor(rng.normal(size=3)) for k in range(9)}
    R = AverageReward(weights, lambda w: float(w.norm()))
    dgf(list(weights), R)
    assert R.evaluations == 2 * 9 - 1
    opt(list(weights), R)
    assert R.evaluations == 2**9 - 1


def test_filters_do_not_import_torch() -> None:
    import subprocess
    import sys

    code = "import sys, filfl.filtering, filfl.filtering.rewards; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
