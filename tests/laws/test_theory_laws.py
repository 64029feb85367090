"""Section 4 and Appendix D of the paper on least squares problems, and the two scenarios of its Figure 1."""

import math
from itertools import combinations, permutations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from filfl.data.ridge import LeastSquares, Ridge, least_squares
from filfl.filtering import dgf, opt, rgf
from filfl.selection.divfl import distances, lazy_greedy

Vector = np.ndarray


def lemma_2(problem: LeastSquares, v: Vector, z: Vector) -> tuple[float, float, float]:
    """x = ||z - v||, the bound on it that Lemma 2 prints, and the bound that its inequality gives.

    From x^2 - 2cx <= -2 delta/mu, with c = ||grad F(v)|| / mu, follows (x - c)^2 <= c^2 - 2 delta/mu. The paper has
    (x + c)^2 there, and so x^2 <= c^2 - 2 delta/mu. mu is that of F, the largest with which the lemma applies.
    """
    mu = float(np.linalg.eigvalsh(problem.hessian).min())
    c = float(np.linalg.norm(problem.gradient(v))) / mu
    square = c**2 - 2 * (problem.excess(v) - problem.excess(z)) / mu
    root = math.sqrt(max(square, 0.0))  # it is not negative: strong convexity, up to rounding
    return float(np.linalg.norm(z - v)), root, c + root


def test_the_printed_bound_of_lemma_2_fails_by_hand() -> None:
    """F(w) = w^2 / 2, v = 1 and z = w* = 0: x = 1, c = 1 and delta = 1/2."""
    problem = LeastSquares(np.ones((1, 1, 1)), np.zeros((1, 1)), np.zeros(1))
    x, printed, corrected = lemma_2(problem, np.array([1.0]), np.array([0.0]))
    assert (x, printed, corrected) == (1.0, 0.0, 1.0)


@given(st.integers(0, 1000), st.integers(0, 2**32 - 1))
def test_the_corrected_bound_of_lemma_2_holds_for_any_two_points(data_seed: int, seed: int) -> None:
    problem = least_squares(Ridge(clients=3, features=3, samples=20).load(data_seed), 0.1)
    v, z = problem.optimum + np.random.default_rng(seed).normal(scale=3, size=(2, 3))
    x, _, corrected = lemma_2(problem, v, z)
    assert x <= corrected * (1 + 1e-9)


def test_on_ridge_the_printed_bound_of_lemma_2_fails_for_many_of_the_best_sets() -> None:
    """z_t is the mean of the best set by F itself, which is the filter with the largest delta_t."""
    fails = []
    for seed in range(3):
        data = Ridge(clients=8, features=5, samples=200, heterogeneity=0.5, noise=0.5, filtering=0.3).load(seed)
        problem, w = least_squares(data, 0.1), np.zeros(5)
        sets = [list(S) for size in range(1, 9) for S in combinations(range(8), size)]
        for t in range(1, 8):
            trained = np.array([w] * 8)
            for _ in range(5):
                step = np.einsum("kij,kj->ki", problem.hessians, trained) - problem.linear
                trained = trained - 0.5 / t * step
            v = trained.mean(axis=0)
            z = min((trained[S].mean(axis=0) for S in sets), key=problem.excess)
            x, printed, corrected = lemma_2(problem, v, z)
            assert x <= corrected * (1 + 1e-9)
            fails.append(x > printed * (1 + 1e-9))
            w = z
    assert sum(fails) > len(fails) / 3


def test_the_recursion_of_theorem_1_does_not_stay_near_varphi() -> None:
    """Delta_(t+1) = (1 - eta_t mu) Delta_t + eta_t^2 B + varphi with eta_t = beta / t grows linearly: varphi is not
    multiplied by eta_t. With beta mu = 1 and B = 0 it is exactly varphi t (t + 1) / 2 / t."""
    varphi, delta = 0.01, 0.0
    for t in range(1, 10_001):
        delta = (1 - 1 / t) * delta + varphi
    assert delta == pytest.approx(varphi * 10_001 / 2)
    assert delta > 5000 * varphi


def mean_distance(arrows: dict[int, tuple[float, float]], blue: tuple[float, float]):
    """R(S) = 10 minus the squared distance between the mean of the arrows of S and the best direction, at least 0."""

    def R(S: frozenset[int]) -> float:
        if not S:
            return 0.0
        mean = np.mean([arrows[k] for k in sorted(S)], axis=0)
        return max(10 - float(np.sum((mean - np.array(blue)) ** 2)), 0.0)

    return R


@pytest.mark.parametrize(
    ("arrows", "blue", "kept"),
    [
        # A: green, green, and red, which is longer and points elsewhere. (2, 1) and (2, -1) have the mean (2, 0).
        ({0: (2, 1), 1: (2, -1), 2: (-3, 4)}, (2, 0), {0, 1}),
        # B: green, green, and orange, which is short and points elsewhere. All three have the mean (2, 0.5).
        ({0: (3, 1), 1: (3, 2), 2: (0, -1.5)}, (2, 0.5), {0, 1, 2}),
    ],
    ids=["A", "B"],
)
def test_the_filters_solve_both_scenarios_of_figure_1(arrows, blue, kept) -> None:
    R = mean_distance(arrows, blue)
    for order in map(list, permutations(arrows)):
        assert set(dgf(order, R).kept) == set(opt(order, R).kept) == kept
        for seed in range(5):
            assert set(rgf(order, R, np.random.default_rng(seed)).kept) == kept


def test_diversity_and_length_prefer_the_red_arrow_of_figure_1() -> None:
    """The paper's reason to assess combinations: DivFL with K = 2 and the longest updates contain the red arrow."""
    arrows = torch.tensor([[2.0, 1.0], [2.0, -1.0], [-3.0, 4.0]])
    assert 2 in lazy_greedy(distances(list(arrows)), 2)
    assert int(arrows.norm(dim=1).argmax()) == 2
