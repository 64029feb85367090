"""DGF, RGF and OPT on a small reward, computed by hand."""

import numpy as np
import pytest

from filfl.filtering import dgf, opt, rgf

# Three clients: c lowers the reward of every set that it joins; a and b are better together.
R = {
    "": 0.0,
    "a": 4.0,
    "b": 3.0,
    "c": 1.0,
    "ab": 6.0,
    "ac": 2.0,
    "bc": 2.0,
    "abc": 5.0,
}


def reward(subset: frozenset[str]) -> float:
    return R["".join(sorted(subset))]


def test_dgf_step_by_step() -> None:
    result = dgf(["c", "a", "b"], reward)
    # c: a = R(c) - R() = 1, b = R(ab) - R(abc) = 1: equal, so c is not kept (a > b, strictly).
    # a: a = R(a) - R() = 4, b = R(b) - R(ab) = -3: kept.
    # b: a = R(ab) - R(a) = 2, b = R(a) - R(ab) = -2: kept.
    assert [(s.client, s.a, s.b, s.p, s.kept) for s in result.trace] == [
        ("c", 1.0, 1.0, 0.0, False),
        ("a", 4.0, -3.0, 1.0, True),
        ("b", 2.0, -2.0, 1.0, True),
    ]
    assert result.kept == ("a", "b")


def test_rgf_probabilities() -> None:
    # A draw of 0.6 against p = 1 / (1 + 1) for c rejects it; after that a and b are certain.
    class Draws:
        def random(self) -> float:
            return 0.6

    result = rgf(["c", "a", "b"], reward, Draws())
    assert [s.p for s in result.trace] == [0.5, 1.0, 1.0]
    assert result.kept == ("a", "b")


def test_rgf_accepts_when_neither_adding_nor_removing_gains() -> None:
    result = rgf([1, 2], lambda S: -float(len(S) == 1), np.random.default_rng(0))
    # 1: a = R({1}) - R({}) = -1, b = R({2}) - R({1, 2}) = -1, so both are cut to 0 and p = 1.
    assert (result.trace[0].a, result.trace[0].b, result.trace[0].p) == (-1.0, -1.0, 1.0)
    assert result.kept == (1, 2)


def test_opt() -> None:
    assert opt(["c", "b", "a"], reward).kept == ("b", "a")


def test_opt_breaks_ties_by_size_and_then_by_order() -> None:
    assert opt(["c", "b", "a"], lambda S: 1.0).kept == ("c",)
    assert opt(["c", "b", "a"], lambda S: float(len(S) == 2)).kept == ("c", "b")


def test_one_client_and_no_client() -> None:
    assert dgf(["a"], reward).kept == ("a",)
    assert dgf(["a"], lambda S: 0.0).kept == ()  # a = b = 0 is not a > b
    assert dgf([], reward).kept == opt([], reward).kept == ()


def test_opt_refuses_more_than_20_clients() -> None:
    with pytest.raises(ValueError, match=r"at most 20 clients \(got 21\)"):
        opt(list(range(21)), lambda S: 0.0)


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_a_non_finite_reward_raises(broken: float) -> None:
    with pytest.raises(ValueError, match="must be finite"):
        dgf(["a", "b"], lambda S: broken)


def test_a_repeated_client_raises() -> None:
    with pytest.raises(ValueError, match="twice"):
        rgf(["a", "a"], reward, np.random.default_rng(0))
