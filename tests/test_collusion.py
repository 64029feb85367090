"""Attacks of clients that see what each of them trained: by hand, by ByzFL, and in whole runs."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import filfl
from filfl.attacks import ATTACKS
from filfl.attacks.alie import ALIE, largest_z
from filfl.attacks.base import Colluders, Collusion
from filfl.attacks.gaussian import Gaussian
from filfl.attacks.ipm import IPM
from filfl.attacks.mimic import Mimic
from filfl.attacks.min_max import MinMax

TOGETHER = sorted(name for name, kind in ATTACKS.items() if issubclass(kind, Collusion))
matrices = st.integers(1, 5).flatmap(
    lambda d: st.lists(st.lists(st.integers(-9, 9), min_size=d, max_size=d), min_size=2, max_size=6)
)


def known(rows: Any, n: int = 20) -> Colluders:
    return Colluders(torch.tensor(rows, dtype=torch.float64), n, np.random.default_rng(0))


def test_by_hand() -> None:
    two = known([[1.0, 0.0], [3.0, 4.0]])  # mean (2, 2), standard deviation sqrt(2) and sqrt(8)
    np.testing.assert_allclose(ALIE(share=1, z=2.0).sent_together(two), [2 + 2 * 2**0.5, 2 + 2 * 8**0.5])
    np.testing.assert_allclose(IPM(share=1).sent_together(two), [-1.0, -1.0])
    np.testing.assert_allclose(Mimic(share=1).sent_together(two), [1.0, 0.0])
    # The two are sqrt(20) apart. From (2, 2) - g (sqrt 2, sqrt 8), the farther one is (3, 4), at (1 + g sqrt 2) sqrt 5.
    np.testing.assert_allclose(MinMax(share=1).sent_together(two), [1.0, 0.0], atol=1e-6)
    noise = Gaussian(share=1, std=3.0).sent_together(known(np.zeros((50, 400))))
    assert noise.shape == (50, 400) and noise.std().item() == pytest.approx(3.0, rel=0.05)
    assert not torch.equal(noise[0], noise[1])


def test_the_paper_s_example_of_z() -> None:
    # Baruch et al., Section 3.1: n = 50, f = 24 need 2 supporters, share 24 / 26, z = 1.43.
    assert largest_z(50, 24) == pytest.approx(1.426, abs=0.01)
    assert largest_z(20, 0) == 0.0, "without attackers the mean itself"
    assert largest_z(5, 5) >= 0.0


@given(matrices)
def test_min_max_is_as_far_as_it_may_be(rows: list[list[int]]) -> None:
    these = known(rows)
    sent = MinMax(share=1).sent_together(these)
    limit = float(torch.cdist(these.updates, these.updates).max())
    assert float(torch.linalg.vector_norm(these.updates - sent, dim=1).max()) <= limit + 1e-6
    if limit > 0:
        farther = sent - 1e-3 * limit * these.std / torch.linalg.vector_norm(these.std)
        assert float(torch.linalg.vector_norm(these.updates - farther, dim=1).max()) > limit - 1e-6


@given(matrices, st.integers(-5, 5))
def test_what_is_sent_moves_with_the_updates(rows: list[list[int]], shift: int) -> None:
    for kind in (ALIE(share=1), MinMax(share=1), Mimic(share=1)):
        moved = kind.sent_together(known(np.array(rows, dtype=float) + shift))
        torch.testing.assert_close(moved, kind.sent_together(known(rows)) + shift, atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", TOGETHER)
def test_a_single_attacker_and_a_whole_run(name: str) -> None:
    alone = ATTACKS[name](share=1).sent(torch.tensor([2.0, 3.0]), torch.tensor([1.0, 1.0]))
    assert alone.shape == (2,) and bool(alone.isfinite().all())
    config = {"rounds": 2, "data.clients": 10, "selection.k": 4, "filter.name": "none", "attack.name": name}
    runs = [
        filfl.simulate({**config, "attack.share": 0.8, "execution.mode": mode}, progress=False)
        for mode in ("serial", "vectorized")
    ]
    clean = filfl.simulate({**config, "attack.name": "none"}, progress=False)
    assert [record["selected"] for record in runs[0].records] == [record["selected"] for record in clean.records]
    assert runs[0].records[-1]["test_loss"] != clean.records[-1]["test_loss"]
    np.testing.assert_allclose(*([record["test_loss"] for record in run.records] for run in runs), rtol=1e-3)
