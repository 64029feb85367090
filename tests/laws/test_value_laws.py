"""Laws of the client values, with shapiq as a referee, and small numbers worked out by hand."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from filfl.evaluation import cross_entropy, mean_squared_error, sample_losses
from filfl.filtering.ensemble import EnsembleReward
from filfl.filtering.rewards import OnSamples
from filfl.values import METHODS, banzhaf, leave_one_out, one_of_k, over_global, shapley

SEEDS = st.integers(0, 2**32 - 1)


def ensemble(seed: int, n: int, m: int = 30, classes: int = 4, spread: float = 1.0) -> EnsembleReward:
    """The reward of n clients with random logits on m samples, and that of a global model."""
    rng = np.random.default_rng(seed)
    y = torch.from_numpy(rng.integers(classes, size=m))
    z = torch.from_numpy(rng.normal(size=(n + 1, m, classes)) * spread).float()
    reward = EnsembleReward({10 * k: z[k] for k in range(n)}, y, cross_entropy, own=lambda: z[n])
    reward.K = min(3, n)
    return reward


def random_game(seed: int, n: int) -> tuple[list[str], dict[frozenset[str], float]]:
    rng = np.random.default_rng(seed)
    players = [f"c{i}" for i in range(n)]
    sets = [frozenset(p for i, p in enumerate(players) if code >> i & 1) for code in range(2**n)]
    return players, dict(zip(sets, rng.normal(size=len(sets)).tolist(), strict=True))


@pytest.mark.parametrize(("index", "function"), [("SV", shapley), ("BV", banzhaf)])
@pytest.mark.parametrize("n", [2, 5, 8])
def test_exact_values_of_any_set_function_are_those_of_shapiq(index: str, function: Any, n: int) -> None:
    from shapiq import ExactComputer

    players, game = random_game(n, n)

    def values_of(coalitions: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        rows = np.atleast_2d(coalitions)
        return np.array([game[frozenset(p for p, there in zip(players, row, strict=True) if there)] for row in rows])

    referee = ExactComputer(n_players=n, game=values_of)(index, order=1)
    expected = [referee[(i,)] for i in range(n)]
    found = function(players, game.__getitem__, np.random.default_rng(0))
    np.testing.assert_allclose(found.value, expected, atol=1e-9)
    assert (found.sampling_stderr == 0).all() and np.isnan(found.stderr).all(), "all sets, one number each"


@pytest.mark.parametrize("function", [shapley, banzhaf])
def test_sampled_values_agree_with_exact_ones_within_their_standard_error(function: Any) -> None:
    n = 12
    weights = np.random.default_rng(3).normal(size=n)
    pairs = np.random.default_rng(4).normal(size=(n, n)) * 0.3

    def reward(S: frozenset[int]) -> float:
        members = sorted(S)
        return float(weights[members].sum() + pairs[np.ix_(members, members)].sum() / 2)

    # The value of a quadratic game: its own weight, and half of what it adds together with each other client.
    exact = weights + np.diag(pairs) / 2 + (pairs + pairs.T - 2 * np.diag(np.diag(pairs))).sum(axis=1) / 4
    found = function(list(range(n)), reward, np.random.default_rng(0), 400)
    assert (np.abs(found.value - exact) <= 4 * found.sampling_stderr + 1e-9).all()
    assert (found.sampling_stderr < 0.5).all()


@given(SEEDS, st.integers(2, 13))
def test_shapley_values_sum_to_the_gain_of_all_clients_over_the_global_model(seed: int, n: int) -> None:
    reward = ensemble(seed, n)
    values = shapley(reward.clients, reward, np.random.default_rng(seed), permutations=4)
    gain = reward.global_losses().mean() - reward.sample_losses(reward.clients).mean()
    assert values.value.sum() == pytest.approx(gain, abs=1e-6)


@given(SEEDS, st.sampled_from(sorted(METHODS)), st.integers(3, 12))
def test_clients_with_the_same_outputs_have_the_same_value(seed: int, method: str, n: int) -> None:
    made = ensemble(seed, n)
    outputs = dict(made._outputs.items())
    outputs[0] = outputs[10]
    reward = EnsembleReward(outputs, made._targets, cross_entropy, own=made._own)
    reward.K = 2
    values = METHODS[method](reward.clients, reward, np.random.default_rng(seed))
    tolerance = 1e-6 + 5 * float(np.hypot(values.sampling_stderr[0], values.sampling_stderr[1]))
    assert values[0] == pytest.approx(values[10], abs=tolerance)


@given(SEEDS, st.sampled_from(sorted(METHODS)))
def test_values_do_not_depend_on_the_order_of_the_clients(seed: int, method: str) -> None:
    reward = ensemble(seed, 6)
    backwards = reward.clients[::-1]
    values, again = (METHODS[method](ids, reward, np.random.default_rng(0)) for ids in (reward.clients, backwards))
    np.testing.assert_allclose(values.value, again.value[::-1], atol=1e-6)
    np.testing.assert_allclose(values.stderr, again.stderr[::-1], atol=1e-6)


def test_leave_one_out_and_one_of_k_by_hand() -> None:
    # Outputs are numbers, targets are 0 and the loss is the square: clients 0, 1 and 4 have mean 5/3.
    outputs = {k: torch.tensor([[z], [z]]) for k, z in {7: 0.0, 8: 1.0, 9: 4.0}.items()}
    reward = EnsembleReward(outputs, torch.zeros(2, 1), mean_squared_error)
    reward.K = 2
    found = leave_one_out([7, 8, 9], reward)
    np.testing.assert_allclose(found.value, [(5 / 2) ** 2 - 25 / 9, 4 - 25 / 9, 1 / 4 - 25 / 9], rtol=1e-6)
    assert found.value[2] < 0 < found.value[1] < found.value[0], "the client that is far off hurts"
    # As one of two: (5/3 + z) / 2 has the squares (5/6)^2, (8/6)^2 and (17/6)^2. The median client has value 0.
    as_one = one_of_k([7, 8, 9], reward)
    np.testing.assert_allclose(as_one.value, [(64 - 25) / 36, 0, (64 - 289) / 36], rtol=1e-6)
    assert (as_one.stderr == 0).all(), "both samples of V say the same"


@given(SEEDS, st.integers(2, 9))
def test_sample_losses_of_sets_are_those_of_the_reward(seed: int, n: int) -> None:
    reward = ensemble(seed, n)
    some = frozenset(np.random.default_rng(seed).choice(reward.clients, size=max(1, n // 2), replace=False).tolist())
    assert 10 - reward.sample_losses(some).mean() == pytest.approx(reward(some), abs=1e-4)
    k = min(some)
    weighted = reward.sample_losses({k: 3.0, **dict.fromkeys(some - {k}, 1.0)})
    assert len(some) > 1 or weighted.mean() == pytest.approx(reward.sample_losses(some).mean())
    part = reward.on(np.array([0, 5, 7]))
    np.testing.assert_allclose(part.sample_losses(some), reward.sample_losses(some)[[0, 5, 7]], atol=1e-5)


def test_losses_of_any_user_s_function_are_taken_sample_by_sample() -> None:
    z, y = torch.randn(7, 3, generator=torch.manual_seed(0)), torch.arange(7) % 3
    expected = sample_losses(cross_entropy, z, y)

    def own(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return cross_entropy(outputs, targets) * 2

    def branching(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return cross_entropy(outputs, targets) * (3 if float(outputs.sum()) < 1e9 else 0)

    torch.testing.assert_close(sample_losses(own, z, y), 2 * expected)
    torch.testing.assert_close(sample_losses(branching, z, y), 3 * expected)
    torch.testing.assert_close(expected.mean(), cross_entropy(z, y))


@given(SEEDS, st.floats(0.1, 20.0))
def test_capped_losses_are_bounded(seed: int, spread: float) -> None:
    reward = ensemble(seed, 5, spread=spread)
    weights = np.random.default_rng(seed).dirichlet(np.ones(5), size=4)
    capped = reward.capped()
    np.testing.assert_allclose(capped.losses_at(weights), np.minimum(reward.losses_at(weights), 1.5 * np.log(4)))
    np.testing.assert_allclose(capped.global_losses(), np.minimum(reward.global_losses(), 1.5 * np.log(4)))
    assert capped.K == reward.K
    numbers = EnsembleReward({0: torch.ones(3, 1)}, torch.zeros(3, 1), mean_squared_error)
    assert numbers.capped() is numbers, "a squared error has no loss of guessing"


@given(SEEDS, st.integers(1, 9), st.floats(-0.9, 1.0), st.booleans())
def test_losses_near_an_average_are_those_of_the_same_weights(seed: int, n: int, share: float, own: bool) -> None:
    reward, rng = ensemble(seed, n), np.random.default_rng(seed)
    center = rng.dirichlet(np.ones(n + own))
    which = rng.integers(n, size=rng.integers(0, 2 * n))
    weights = np.array([(1 - share) * center + share * np.eye(n + own)[k] for k in which]).reshape(-1, n + own)
    found = reward.losses_near(center, which, share)
    np.testing.assert_allclose(found, reward.losses_at(weights), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(found, OnSamples.losses_near(reward, center, which, share), rtol=1e-4, atol=1e-4)


@given(SEEDS, st.integers(1, 6), st.booleans())
def test_losses_at_are_those_of_the_averaged_outputs(seed: int, n: int, left_out: bool) -> None:
    """Also with targets that cross-entropy leaves out of the mean, whose loss is 0."""
    reward, rng = ensemble(seed, n), np.random.default_rng(seed)
    targets = reward._targets.clone()
    if left_out:
        targets[::3] = -100
    reward = EnsembleReward(reward._outputs, targets, cross_entropy, own=reward._own)
    weights = rng.dirichlet(np.ones(n + 1), size=4)
    z = torch.stack([*reward._outputs.values(), reward._own()]).double()
    for row, losses in zip(torch.from_numpy(weights), reward.losses_at(weights), strict=True):
        averaged = torch.einsum("k,kmc->mc", row, z)
        expected = torch.nn.functional.cross_entropy(averaged, targets, reduction="none")
        np.testing.assert_allclose(losses, expected, rtol=1e-4, atol=1e-5)
    assert reward.on_present_classes().num_samples == len(targets)


@given(SEEDS, st.integers(2, 8))
def test_a_client_with_the_global_model_is_as_good_as_no_update(seed: int, n: int) -> None:
    reward = ensemble(seed, n)
    outputs = {**reward._outputs, 10: reward._own()}
    made = EnsembleReward(outputs, reward._targets, cross_entropy, own=reward._own)
    made.K = reward.K
    found = over_global(made.clients, made)
    assert found[10] == pytest.approx(0, abs=1e-6)
    np.testing.assert_allclose(
        found[0],
        np.mean(
            made.losses_at(np.array([[(1 - 1 / made.K) / n] * n + [1 / made.K]]))
            - made.sample_losses({k: (1 - 1 / made.K) / n + (k == 0) / made.K for k in made.clients})
        ),
        rtol=1e-5,
        atol=1e-6,
    )
