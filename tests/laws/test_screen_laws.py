"""Laws of the screen: a client that hurts by itself is dropped, whatever others claim, and no healthy one is."""

from typing import Any

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from filfl.evaluation import cross_entropy
from filfl.filtering import dgf
from filfl.filtering.base import Filtering
from filfl.filtering.ensemble import EnsembleReward
from filfl.filtering.screen import Screened, hurting

SEEDS = st.integers(0, 2**32 - 1)
M, CLASSES, K = 100, 5, 3


def honest(rng: np.random.Generator, right: Tensor, size: float = 1.0) -> Tensor:
    return size * right + 0.3 * torch.from_numpy(rng.normal(size=tuple(right.shape))).float()


def world(seed: int, n: int, others: dict[int, Any]) -> EnsembleReward:
    """n clients whose logits point to the right class. `others` makes the logits of some clients from
    (right, the logits of all honest clients)."""
    rng = np.random.default_rng(seed)
    y = torch.from_numpy(rng.integers(CLASSES, size=M))
    right = torch.nn.functional.one_hot(y, CLASSES).float()
    z = {k: honest(rng, right) for k in range(n)}
    z |= {k: make(right, dict(z)) for k, make in others.items()}
    reward = EnsembleReward(z, y, cross_entropy, own=lambda: torch.zeros(M, CLASSES))
    reward.K = K
    return reward


def bad(right: Tensor, z: dict[int, Tensor]) -> Tensor:
    return -4 * z[0]


@given(SEEDS, st.integers(7, 15), st.sampled_from(["correction", "huge", "perfect", "as bad"]))
def test_no_claim_of_an_accomplice_hides_a_client_that_hurts(seed: int, n: int, kind: str) -> None:
    claims = {
        "correction": lambda right, z: 20 * right - z[0],
        "huge": lambda right, z: 60_000 * torch.ones_like(right) * (right - 0.5),
        "perfect": lambda right, z: 20 * right,
        "as bad": lambda right, z: -60_000 * right,
    }
    reward = world(seed, n, {0: bad, 1: claims[kind]})
    dropped = hurting(reward)
    assert 0 in dropped and set(dropped) <= {0, 1}
    kept = Screened(dgf)(reward.clients, reward, np.random.default_rng(0))
    assert 0 not in kept.kept and set(kept.kept) <= set(reward.clients)
    assert sorted(step.client for step in kept.trace) == reward.clients
    assert [(step.client, step.kept) for step in kept.trace[: len(dropped)]] == [(k, False) for k in sorted(dropped)]


@given(SEEDS, st.integers(4, 15))
def test_healthy_clients_stay_also_those_that_hardly_learn(seed: int, n: int) -> None:
    assert hurting(world(seed, n, {0: lambda right, z: 0.05 * right, 1: lambda right, z: 0 * right})) == []


@given(SEEDS, st.integers(1, 12), st.integers(0, 12))
def test_at_least_k_clients_or_half_of_them_stay(seed: int, n: int, num_bad: int) -> None:
    reward = world(seed, n, dict.fromkeys(range(min(n, num_bad)), bad))
    assert len(hurting(reward)) <= n - min(K, (n + 1) // 2)


def test_a_plain_set_function_is_not_screened() -> None:
    def keep_all(clients: Any, reward: Any, rng: Any) -> Filtering:
        return Filtering(kept=tuple(clients))

    found = Screened(keep_all)(["a", "b"], lambda S: float(len(S)), np.random.default_rng(0))
    assert found == Filtering(kept=("a", "b"))


def test_the_loss_by_hand() -> None:
    """K = 2, two classes, logits (d, 0) for class 0: alone with the global model the difference is d / 2."""
    y = torch.tensor([0, 0, 1, 1])
    right = torch.nn.functional.one_hot(y, 2).float()
    d = torch.tensor([1.0, 2.0, 1.0, 2.0])[:, None]
    z = {0: d * right, 1: d * right, 2: -d * right, 3: 0.5 * d * right}
    reward = EnsembleReward(z, y, cross_entropy, own=lambda: torch.zeros(4, 2))
    reward.K = 2
    # Client 2 has log(1 + e^0.5) and log(1 + e^1) instead of log 2: differences of 0.281 and 0.620 twice each, with
    # a mean of 0.450 and a standard error of 0.098. So it is 4.6 standard errors worse than no update.
    assert hurting(reward) == [2]
    reward.K = 3
    assert hurting(reward) == [2], "at least two of four stay"
    assert hurting(reward, least=4) == []


def test_clients_are_compared_with_the_global_model() -> None:
    """The global model has learnt: a client that is a little better stays, one that is worse is dropped."""
    rng = np.random.default_rng(0)
    y = torch.from_numpy(rng.integers(CLASSES, size=M))
    right = torch.nn.functional.one_hot(y, CLASSES).float()
    size = 1 + 0.2 * torch.from_numpy(rng.random((M, 1))).float()  # the samples differ
    z = {0: 2.1 * size * right, 1: 1.5 * size * right, **dict.fromkeys(range(2, 7), 3 * size * right)}
    reward = EnsembleReward(z, y, cross_entropy, own=lambda: 2 * size * right)
    reward.K = K
    assert hurting(reward) == [1]
