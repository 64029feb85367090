"""Attacks on the data of clients, and attackers that know the filtering set or the rule of the server."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import filfl
from filfl.attacks.adaptive import Adaptive
from filfl.attacks.alie import ALIE
from filfl.attacks.backdoor import Backdoor
from filfl.attacks.base import FACTORS, Colluders
from filfl.attacks.ipm import IPM
from filfl.attacks.label_flip import LabelFlip
from filfl.config.config import Config
from filfl.errors import ConfigError
from filfl.runs import read_run

rows = st.integers(1, 4).flatmap(
    lambda d: st.lists(st.lists(st.integers(-9, 9), min_size=d, max_size=d), min_size=1, max_size=5)
)


def images(clients: int = 4, each: int = 6) -> filfl.FederatedData:
    rng = np.random.default_rng(0)
    n = clients * each
    x = rng.integers(0, 200, size=(n, 1, 5, 5)).astype(np.uint8)
    owners = np.repeat(np.arange(clients), each)
    return filfl.FederatedData.from_arrays(x, np.arange(n) % 3, owners, filtering=0.2, test=0.3)


def same_except_training(a: filfl.FederatedData, b: filfl.FederatedData) -> bool:
    return all(
        np.array_equal(getattr(a, name), getattr(b, name)) for name in ("filter_x", "filter_y", "test_x", "test_y")
    )


@pytest.mark.parametrize("attack", [LabelFlip(share=0.5), Backdoor(share=0.5, target=1)])
def test_only_the_samples_of_attackers_change(attack: LabelFlip | Backdoor) -> None:
    data = images()
    poisoned = attack.poisoned(data, seed=3)
    assert same_except_training(data, poisoned)
    bad = set(attack.bad(4, 3).tolist())
    assert len(bad) == 2
    for k in range(4):
        mine = slice(data.offsets[k], data.offsets[k + 1])
        same = np.array_equal(data.x[mine], poisoned.x[mine]) and np.array_equal(data.y[mine], poisoned.y[mine])
        assert same == (k not in bad)


def test_flipped_labels_by_hand() -> None:
    data = images()
    poisoned = LabelFlip(share=1.0).poisoned(data, seed=0)
    assert np.array_equal(poisoned.y, 2 - data.y) and np.array_equal(poisoned.x, data.x)
    assert np.array_equal(LabelFlip(share=1.0).poisoned(poisoned, seed=0).y, data.y), "twice is none"


@given(st.integers(1, 4), st.integers(0, 2), st.floats(0, 1))
def test_the_patch_and_its_label(patch: int, target: int, share: float) -> None:
    data = images()
    poisoned = Backdoor(share=1.0, patch=patch, target=target, poisoned_share=share).poisoned(data, seed=0)
    corner = (slice(None), slice(None), slice(-patch, None), slice(-patch, None))
    elsewhere = np.ones_like(data.x, dtype=bool)
    elsewhere[corner] = False
    assert np.array_equal(poisoned.x[elsewhere], data.x[elsewhere])
    patched = (poisoned.x[corner] == data.x.max()).all(axis=(1, 2, 3))
    for k in range(4):
        mine = slice(data.offsets[k], data.offsets[k + 1])
        assert patched[mine].sum() >= round(share * len(data.y[mine]))
    assert (poisoned.y[patched & (poisoned.y != data.y)] == target).all()
    assert (poisoned.y[~patched] == data.y[~patched]).all()


def test_the_samples_that_measure_success() -> None:
    data = images()
    triggered = Backdoor(share=0.5, target=1, patch=2).triggered(data)
    assert len(triggered.x) == int((data.test_y != 1).sum()) and triggered.target == 1
    assert (triggered.x[:, :, -2:, -2:] == data.x.max()).all()


def test_a_backdoor_is_learned_and_measured(tmp_path: Path) -> None:
    config: dict[str, Any] = {"rounds": 10, "selection.k": 20, "filter.name": "none", "attack.name": "backdoor"}
    attacked = filfl.simulate({**config, "attack.share": 0.3}, out=tmp_path / "run", progress=False)
    clean = filfl.simulate({**config, "attack.share": 0.0}, progress=False)
    success, without = (run.records[-1]["metrics"]["attack_success"] for run in (attacked, clean))
    assert success > 0.9 and without < 0.3
    assert read_run(tmp_path / "run").records[-1]["metrics"]["attack_success"] == success


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"attack.target": 10}, "attack.target must be below the number of classes, 10"),
        ({"attack.patch": 8}, "attack.patch must be smaller than the images"),
    ],
)
def test_a_backdoor_that_does_not_fit_the_images_is_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        filfl.simulate({"attack.name": "backdoor", "attack.share": 0.5, **changes}, progress=False)


@pytest.mark.parametrize("name", ["label-flip", "backdoor"])
def test_numeric_targets_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"needs (class labels|images with class labels)"):
        filfl.simulate({"data.name": "ridge", "model.name": "linear", "attack.name": name, "attack.share": 0.5})


def test_attackers_need_a_filtering_set_to_know_it() -> None:
    config = {"filter.name": "none", "data.filtering": 0.0, "attack.name": "adaptive", "attack.share": 0.5}
    with pytest.raises(ConfigError, match="needs a filtering set of the server"):
        filfl.simulate(config, progress=False)


# Attackers that know the rule of the server.


def known(updates: Any, n: int = 10, **options: Any) -> Colluders:
    return Colluders(torch.tensor(updates, dtype=torch.float64), n, np.random.default_rng(0), **options)


def test_against_the_mean_the_largest_factor_is_most_harmful() -> None:
    sent = IPM(share=1, factor=0.5, optimal=True).sent_together(known([[1.0, 2.0], [3.0, 0.0]]))
    np.testing.assert_allclose(sent, [-0.5 * 4 * 2.0, -0.5 * 4 * 1.0])


def test_against_a_rule_that_ignores_what_is_far_a_smaller_factor_is_most_harmful() -> None:
    def within_two(stack: Tensor) -> Tensor:  # the mean of the updates of norm 2 or less
        return stack[torch.linalg.vector_norm(stack, dim=1) <= 2.0].mean(dim=0)

    sent = IPM(share=1, factor=1.0, optimal=True).sent_together(known([[1.0, 0.0]], rule=within_two))
    largest = max(factor for factor in FACTORS if factor <= 2.0)
    np.testing.assert_allclose(sent, [-largest, 0.0])


@given(rows)
def test_the_optimal_one_is_never_less_harmful_than_the_others(updates: list[list[int]]) -> None:
    def middle(stack: Tensor) -> Tensor:
        return stack.median(dim=0).values

    these = known(updates, rule=middle)
    others = these.updates[torch.arange(10 - len(updates)) % len(updates)]

    def harm(sent: Tensor) -> float:
        stack = torch.cat([others, sent.expand(len(updates), -1)])
        return float(torch.linalg.vector_norm(middle(stack) - others.mean(dim=0)))

    for attack in (ALIE(share=1, z=1.0, optimal=True), IPM(share=1, optimal=True)):
        best = harm(attack.sent_together(these))
        for factor in FACTORS:
            fixed = these.mean + factor * these.std if isinstance(attack, ALIE) else -0.5 * factor * these.mean
            assert best >= harm(fixed) - 1e-9


# Attackers that know the filtering set.


@given(rows)
def test_an_adaptive_update_looks_like_an_ordinary_one_and_goes_as_far_as_it_can(updates: list[list[int]]) -> None:
    wanted = torch.ones(len(updates[0]), dtype=torch.float64)

    def loss(update: Tensor) -> float:
        return float((update - wanted).square().sum())

    these = known(updates, loss_on_V=loss, gradient_on_V=lambda update: 2 * (update - wanted))
    sent = Adaptive(share=1).sent_together(these)
    allowed = float(torch.tensor([loss(update) for update in these.updates]).median())
    if loss(these.mean) > allowed:
        assert torch.equal(sent, these.mean)
    else:
        assert loss(sent) <= allowed + 1e-9
        moved = these.mean - sent
        assert float(moved @ these.mean) >= -1e-9, "against what they trained"
        if torch.linalg.vector_norm(moved) > 1e-6:
            assert loss(sent - 1e-3 * moved) > allowed - 1e-9, "farther is not ordinary any more"


def test_an_adaptive_update_by_hand() -> None:
    # Two attackers at (2, 1) and (2, -1); V wants (1, 0): losses 2 and 2, allowed 2. The mean (2, 0) has the loss 1 and
    # the gradient (2, 0), along the mean itself: nothing is left across it, so that the mean is sent.
    wanted = torch.tensor([1.0, 0.0], dtype=torch.float64)
    V = {
        "loss_on_V": lambda update: float((update - wanted).square().sum()),
        "gradient_on_V": lambda update: 2 * (update - wanted),
    }
    same = Adaptive(share=1).sent_together(known([[2.0, 1.0], [2.0, -1.0]], **V))
    np.testing.assert_allclose(same, [2.0, 0.0], atol=1e-6)

    # V looks at the second weight only, so that the first one can be moved without end.
    V = {
        "loss_on_V": lambda update: float(update[1] ** 2),
        "gradient_on_V": lambda update: torch.stack([torch.zeros_like(update[1]), 2 * update[1]]),
    }
    sent = Adaptive(share=1).sent_together(known([[2.0, 1.0], [2.0, 1.0]], **V))
    assert float(sent[0]) < -1e5 and float(sent[1]) == 1.0


def test_an_adaptive_attack_harms_the_mean() -> None:
    config: dict[str, Any] = {"rounds": 8, "selection.k": 10, "filter.name": "none"}
    bad = {"attack.name": "adaptive", "attack.share": 0.3}
    clean, attacked = (filfl.simulate({**config, **more}, progress=False) for more in ({}, bad))
    assert attacked.summary["final_accuracy"] < clean.summary["final_accuracy"] - 0.1
    assert Config.read({**config, **bad}).attack == Adaptive(share=0.3)
