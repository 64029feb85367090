"""Laws of filtering in half precision: the same clients as in float32, for any network, and the rewards of float32."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import filfl
from filfl.config.config import Config
from filfl.errors import PluginError
from filfl.evaluation import cross_entropy
from filfl.filtering import dgf, rgf
from filfl.filtering.estimate import CERTAIN, Estimate
from filfl.filtering.filtering_set import FilteringSet
from filfl.filtering.rewards import AverageReward
from filfl.weights import FlatModel, Weights

M = 60
CPU = torch.device("cpu")


def mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 5))


def cnn() -> nn.Module:
    layers = [nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(64, 5))


def frozen() -> nn.Module:
    made = mlp()
    made[1].requires_grad_(False)
    return made


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.lstm, self.out = nn.Embedding(8, 6), nn.LSTM(6, 12, batch_first=True), nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(self.lstm(self.embed(x))[0][:, -1])
        return out


NETWORKS: list[Callable[[], nn.Module]] = [mlp, cnn, frozen, Tokens]


def rewards(make: Callable[[], nn.Module], seed: int, n: int, spread: float, precision: str) -> AverageReward:
    """n clients around one model, some farther away than others, so that they differ in loss."""
    torch.manual_seed(seed)
    net = FlatModel(make(), CPU)
    x = torch.randint(8, (M, 10)) if make is Tokens else torch.rand(M, 1, 8, 8)
    V = FilteringSet(make, x, torch.randint(5, (M,)), precision=precision)  # type: ignore[arg-type]
    V.networks.network().__enter__().use_frozen(net.frozen)
    V = FilteringSet.of(net, V.samples, cross_entropy, precision=precision)  # type: ignore[arg-type]
    w_t = net.weights()
    steps = spread * torch.rand(n, 1) * torch.randn(n, len(w_t.vector))
    clients = {k: w_t.vector + step for k, step in enumerate(steps)}
    return V.judgement(w_t).reward(clients, w_t, empty_is_global=bool(seed % 2))


@pytest.mark.parametrize("make", NETWORKS, ids=lambda make: make.__name__)
@given(seed=st.integers(0, 10**6), n=st.integers(1, 14), spread=st.sampled_from([1e-3, 0.03, 0.3]))
@settings(max_examples=15, deadline=None)
def test_the_same_clients_are_kept(make: Callable[[], nn.Module], seed: int, n: int, spread: float) -> None:
    clients = list(range(n))
    for filter in (dgf, rgf):
        in_float32, in_half = (rewards(make, seed, n, spread, p) for p in ("float32", "bfloat16"))
        kept = filter(clients, in_float32, np.random.default_rng(seed)).kept
        assert filter(clients, in_half, np.random.default_rng(seed)).kept == kept
        assert in_half(frozenset(clients)) == in_float32(frozenset(clients)), "R itself is that of float32"


def test_few_decisions_are_made_again() -> None:
    reward = rewards(mlp, seed=3, n=14, spread=0.3, precision="bfloat16")
    dgf(list(range(14)), reward)
    assert 20 < reward.half_evaluations <= 2 * 14 + 5
    assert reward.evaluations < 14


class Wrong(Estimate):
    """Estimates whose error is measured as 0."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self.error = 0.0


def test_without_the_bound_of_the_error_clients_would_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    def differ() -> int:
        found = 0
        for seed in range(40):
            one, other = (rewards(mlp, seed, 12, 1e-3, precision) for precision in ("float32", "bfloat16"))
            found += dgf(list(range(12)), one).kept != dgf(list(range(12)), other).kept
        return found

    assert differ() == 0
    monkeypatch.setattr("filfl.filtering.rewards.Estimate", Wrong)
    assert differ() > 0


def test_a_decision_by_hand() -> None:
    estimate = object.__new__(Estimate)
    estimate.error = 1.0
    keeps = lambda a, b: float(a > b)  # noqa: E731
    assert estimate.decides(keeps, 0.0, 5.0, 2.9)
    assert not estimate.decides(keeps, 0.0, 5.0, 3.0)
    assert not estimate.decides(keeps, 0.0, 5.0, 6.9)
    assert estimate.decides(keeps, 0.0, 5.0, 7.1)


def test_the_error_by_hand() -> None:
    """Five sets of four clients, with errors of 3, 4, 0, 0 and 0: their root mean square is the root of 5."""
    errors = iter([3.0, 4.0, 0.0, 0.0, 0.0])
    weights = {k: torch.full((1,), float(k)) for k in range(4)}
    exact = AverageReward(weights, lambda w: 5.0)
    half = AverageReward(weights, lambda w: 5.0 - next(errors))
    assert Estimate(exact, half, range(4)).error == pytest.approx(CERTAIN * 5**0.5)


def test_a_network_without_half_precision() -> None:
    class Float32Only(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(64, 5)

        def forward(self, x: Tensor) -> Tensor:
            if x.dtype != torch.float32:
                raise TypeError("float32 only")
            out: Tensor = self.layer(x.flatten(1))
            return out

    x, y = torch.rand(M, 1, 8, 8), torch.randint(5, (M,))
    V = FilteringSet(Float32Only, x, y, precision="bfloat16")
    w_t = V.networks.network().__enter__().weights()
    with pytest.raises(PluginError, match=r'execution.precision = "bfloat16" is not possible.*float32 only'):
        V.judgement(Weights(w_t.vector, w_t.integers))


def test_a_run_has_the_decisions_and_rewards_of_float32() -> None:
    config = Config.read({"rounds": 4, "filter.name": "dgf", "filter.period": 1, "data.clients": 20, "data.noisy": 0.3})
    one, other = (
        filfl.simulate(config.with_changes({"execution.precision": p}), progress=False) for p in ("float32", "bfloat16")
    )
    different = ("trace", "evaluations", "half_evaluations")
    for in_float32, in_half in zip(one.records, other.records, strict=True):
        assert {k: v for k, v in in_half.items() if k not in different} == {
            k: v for k, v in in_float32.items() if k not in different
        }
        assert in_half["half_evaluations"] > 0 == in_float32["half_evaluations"]
        assert [step["kept"] for step in in_half["trace"]] == [step["kept"] for step in in_float32["trace"]]
