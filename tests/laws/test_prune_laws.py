"""Laws of pruning, of the honest gain and of the running estimates."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import filfl
from filfl.core.evidence import MEMORY, Evidence
from filfl.errors import ConfigError, PluginError
from filfl.evaluation import cross_entropy
from filfl.filtering import Prune, dgf, prune
from filfl.filtering.assessment import honest_gain
from filfl.filtering.ensemble import EnsembleReward
from filfl.filtering.keep_all import KeepAll
from filfl.filtering.own import OwnFilter

SEEDS = st.integers(0, 2**32 - 1)


def federation(
    seed: int, good: int, bad: int = 0, m: int = 200, noise: float = 0.5, harm: float = -2.0, K: int = 3
) -> EnsembleReward:
    """Clients with noisy logits: those of good clients point to the right class, those of bad ones away from it."""
    rng = np.random.default_rng(seed)
    y = torch.from_numpy(rng.integers(5, size=m))
    right = torch.nn.functional.one_hot(y, 5).float()
    z = {
        k: right * (1.0 if k < good else harm) + noise * torch.from_numpy(rng.normal(size=(m, 5))).float()
        for k in range(good + bad)
    }
    reward = EnsembleReward(z, y, cross_entropy, own=lambda: torch.zeros(m, 5))
    reward.K = K
    return reward


@given(SEEDS, st.integers(5, 15), st.integers(1, 4))
def test_clients_that_hurt_are_dropped_and_none_of_the_others_is(seed: int, good: int, bad: int) -> None:
    reward = federation(seed, good, bad)
    kept = prune(reward.clients, reward, evidence=3.0, outlier=4.0).kept
    assert set(kept) == set(range(good))


@given(SEEDS, st.integers(1, 12), st.integers(1, 6), st.floats(0, 3), st.integers(1, 15))
def test_at_least_the_floor_is_kept_in_the_order_of_the_clients(
    seed: int, n: int, K: int, evidence: float, floor: int
) -> None:
    reward = federation(seed, n, K=K)
    clients = list(np.random.default_rng(seed).permutation(reward.clients).tolist())
    found = prune(clients, reward, evidence=evidence)
    assert len(found.kept) >= min(n / 2, K) and list(found.kept) == [k for k in clients if k in found.kept]
    assert [step.client for step in found.trace] == clients
    assert len(prune(clients, reward, evidence=evidence, floor=floor).kept) >= min(n, floor)


@given(SEEDS, st.integers(5, 12), st.integers(1, 4))
def test_bad_clients_are_also_dropped_where_all_clients_take_part(seed: int, good: int, bad: int) -> None:
    reward = federation(seed, good, bad, K=good + bad)
    assert set(prune(reward.clients, reward, evidence=3.0, outlier=4.0).kept) == set(range(good))


@given(SEEDS, st.integers(1, 4))
def test_a_class_that_v_does_not_have_decides_nothing(seed: int, unseen: int) -> None:
    """Some clients predict it for every sample, as clients do that have many samples of it."""
    reward = federation(seed, 8, 2)
    rng = np.random.default_rng(seed)
    outputs = {
        k: torch.cat([z, torch.from_numpy(rng.normal(size=(len(z), unseen)) + 5 * (k < 3)).float()], dim=1)
        for k, z in reward._outputs.items()
    }
    wider = EnsembleReward(outputs, reward._targets, cross_entropy)
    wider.K = reward.K
    assert prune(wider.clients, wider) == prune(reward.clients, reward)
    assert wider.on_present_classes().sample_losses([0, 4]) == pytest.approx(reward.sample_losses([0, 4]))
    assert reward.on_present_classes() is reward


@given(SEEDS, st.integers(6, 12))
def test_classes_decide_where_v_has_fewer_than_half_of_them(seed: int, unseen: int) -> None:
    """Clients with random labels of many classes predict classes that a small V does not have."""
    reward = federation(seed, 8)
    wrong = {0, 3}
    outputs = {
        k: torch.cat([z, torch.full((len(z), unseen), 3.0 if k in wrong else -3.0)], dim=1)
        for k, z in reward._outputs.items()
    }
    wider = EnsembleReward(outputs, reward._targets, cross_entropy)
    wider.K = reward.K
    assert wider.on_present_classes() is wider
    assert set(prune(wider.clients, wider, evidence=3.0, outlier=4.0).kept) == set(range(8)) - wrong


@given(SEEDS, st.permutations(range(8)))
def test_the_order_of_the_clients_does_not_matter(seed: int, order: list[int]) -> None:
    reward = federation(seed, 6, 2)
    assert set(prune(order, reward).kept) == set(prune(range(8), reward).kept)


@given(SEEDS)
def test_no_evidence_drops_nobody(seed: int) -> None:
    reward = federation(seed, 8, 2)
    assert prune(reward.clients, reward, evidence=1e9, outlier=1e9).kept == tuple(range(10))


def test_an_oversized_update_is_dropped_although_the_average_hides_it() -> None:
    reward = federation(0, 20)
    outputs = dict(reward._outputs)
    outputs[0] = outputs[0] + 15 * torch.randn(200, 5, generator=torch.manual_seed(1))
    oversized = EnsembleReward(outputs, reward._targets, cross_entropy, own=reward._own)
    oversized.K = 3
    assert 0 not in prune(oversized.clients, oversized).kept


def test_memory_decides_where_one_filtering_cannot_and_is_forgotten() -> None:
    reward = federation(1, 8)
    assert 0 in prune(reward.clients, reward, evidence=3.0, outlier=9.0).kept
    reward.memory = {0: (12.0, 1.0)}  # earlier filterings found that client 0 hurts
    assert 0 not in prune(reward.clients, reward, evidence=3.0, outlier=9.0, memory=0.9).kept
    assert 0 in prune(reward.clients, reward, evidence=3.0, outlier=9.0, memory=0.0).kept
    for _ in range(40):  # from now on it helps
        found = prune(reward.clients, reward, evidence=3.0, outlier=9.0, memory=0.9)
        reward.memory = found.memory  # type: ignore[assignment]
    assert 0 in found.kept


def test_a_reward_without_samples_is_refused_with_the_reason() -> None:
    with pytest.raises(PluginError, match="one number per set"):
        prune([1, 2], lambda S: 0.0)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match='"prune" needs a filtering set on the server'):
        filfl.simulate({"filter.name": "prune", "filter.data": "variable"})


@pytest.mark.parametrize("transport", ["models", "logits"])
def test_a_client_whose_outputs_are_not_finite_is_dropped(transport: str) -> None:
    reward = federation(2, 4)
    outputs = {**reward._outputs, 9: torch.full((200, 5), torch.nan)}
    broken = EnsembleReward(outputs, reward._targets, cross_entropy)
    broken.K = 2
    assert 9 not in prune([9, *reward.clients], broken).kept


def test_the_honest_gain_of_choosing_noise_is_not_above_zero() -> None:
    gains, in_sample = [], []
    for seed in range(30):
        reward = federation(seed, 12, m=60)
        found = honest_gain(OwnFilter(function=lambda ids, R, rng: dgf(ids, R)), reward.clients, reward, seed, 1)
        assert found is not None and found.stderr > 0
        gains.append(found.mean)
        in_sample.append(reward(frozenset(dgf(reward.clients, reward).kept)) - reward(frozenset(reward.clients)))
    assert np.mean(in_sample) > 0 > np.mean(gains), "the gain on the samples that chose the set is optimistic"


def test_the_honest_gain_of_dropping_bad_clients_is_seen_and_that_of_keeping_all_is_zero() -> None:
    reward = federation(3, 8, 4)
    found = honest_gain(Prune(), reward.clients, reward, 0, 1)
    assert found is not None and found.mean > 5 * found.stderr > 0
    assert honest_gain(KeepAll(), reward.clients, reward, 0, 1).mean == 0  # type: ignore[union-attr]
    assert honest_gain(Prune(), reward.clients, reward.on(np.arange(3)), 0, 1) is None, "three samples have no halves"


def test_running_estimates_by_hand() -> None:
    once = Evidence().adding([(4, -0.2, 0.1)])
    assert (once.of(4).value, once.of(4).stderr) == pytest.approx((-0.2, 0.1))
    twice = once.adding([(4, 0.4, 0.2), (5, 1.0, 0.0)])  # a standard error of 0 tells nothing
    weights = np.array([MEMORY / 0.1, 1 / 0.2])
    assert twice.of(4).value == pytest.approx(np.average([-0.2, 0.4], weights=weights))
    assert twice.of(4).stderr == pytest.approx((MEMORY + 1) / weights.sum())
    assert twice.of(5).value is None and twice.of(6).value is None


@pytest.mark.parametrize("name", ["prune", "dgf", "rgf", "local-search", "keep-all"])
def test_runs_record_values_and_the_honest_gain_with_any_filter(small: dict[str, Any], name: str) -> None:
    config = {**small, "filter.name": name, "filter.reward": "ensemble", "rounds": 6, "data.noisy": 0.3}
    by_models = filfl.simulate(config)
    by_logits = filfl.simulate({**config, "filter.transport": "logits"})
    for result in (by_models, by_logits):
        for record in result.records:
            assert bool(record["values"]) == record["did_filter"] == (record["honest_gain"] is not None)
            assert [value["client"] for value in record["values"]] == record["considered"]
            assert all(value["stderr"] > 0 and value["mean_stderr"] > 0 for value in record["values"])
    assert by_models.records[0]["values"] == by_logits.records[0]["values"]
    table = by_models.clients
    assert list(table["value"]) == sorted(table["value"]) and set(table["verdict"]) <= {"helps", "hurts", "cannot tell"}


def test_with_the_paper_s_reward_values_are_measured_on_request_and_change_no_decision(small: dict[str, Any]) -> None:
    plain = filfl.simulate({**small, "filter.name": "dgf"})
    valued = filfl.simulate({**small, "filter.name": "dgf", "filter.values": "leave-one-out"})
    unmeasured = filfl.simulate({**small, "filter.name": "dgf", "filter.honest_gain": False})
    filtered = [record["did_filter"] for record in plain.records]
    assert [bool(record["values"]) for record in valued.records] == filtered and any(filtered)
    assert not any(record["values"] for record in plain.records)
    assert [record["honest_gain"] is not None for record in plain.records] == filtered
    assert all(record["honest_gain"] is None for record in unmeasured.records)
    for other in (valued, unmeasured):
        assert [r["filtered"] for r in other.records] == [r["filtered"] for r in plain.records]
        assert other.accuracy == plain.accuracy
