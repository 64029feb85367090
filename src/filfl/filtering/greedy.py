"""Algorithm 2 of the paper: greedy filtering, chi-GF with chi in {D, R}.

Fourati, Kharrat, Aggarwal, Alouini, Canini: FilFL: Client Filtering for Optimized Client Participation in
Federated Learning. ECAI 2024. The double greedy itself is Buchbinder, Feldman, Naor, Schwartz: A Tight
Linear Time (1/2)-Approximation for Unconstrained Submodular Maximization. SIAM J. Comput. 2015.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from filfl.filtering.base import Client, Filter, Filtering, Reward, Step, checked, expect
from filfl.filtering.rewards import AverageReward


def dgf(clients: Sequence[Client], reward: Reward[Client], rng: np.random.Generator | None = None) -> Filtering:
    """Deterministic greedy filtering: keep u_i if a > b, that is if adding it gains strictly more than removing it."""
    return _greedy(clients, reward, probability=lambda a, b: float(a > b), draw=lambda: 0.0)


def rgf(clients: Sequence[Client], reward: Reward[Client], rng: np.random.Generator) -> Filtering:
    """Randomized greedy filtering: keep u_i with probability a' / (a' + b'), or 1 if both are 0."""

    def probability(a: float, b: float) -> float:
        a_plus, b_plus = max(a, 0.0), max(b, 0.0)  # line 6
        return a_plus / (a_plus + b_plus) if a_plus + b_plus > 0 else 1.0

    return _greedy(clients, reward, probability, draw=rng.random)


@dataclass(frozen=True, kw_only=True)
class DGF(Filter):
    """Deterministic greedy filtering: keep a client if adding it gains strictly more than removing it."""

    def __call__(self, clients: Sequence[Client], reward: Reward[Client], rng: np.random.Generator) -> Filtering:
        return dgf(clients, reward, rng)


@dataclass(frozen=True, kw_only=True)
class RGF(Filter):
    """Randomized greedy filtering: keep a client with probability a' / (a' + b'), or 1 if both are 0."""

    def __call__(self, clients: Sequence[Client], reward: Reward[Client], rng: np.random.Generator) -> Filtering:
        return rgf(clients, reward, rng)


def _greedy(
    clients: Sequence[Client],
    reward: Reward[Client],
    probability: Callable[[float, float], float],
    draw: Callable[[], float],
) -> Filtering:
    """Algorithm 2, lines 1-16. Evaluates the reward of at most 2n - 1 non-empty sets, and once of the empty set.

    R(X) and R(Y) are kept from step to step. In the last step X + u = Y and Y - u = X, so it needs no evaluation.
    Where the reward has estimates in half precision, they make the decisions that float32 makes alike.
    """
    estimate = reward.estimate(clients) if isinstance(reward, AverageReward) else None
    used = cast(Reward[Client], reward if estimate is None else estimate)
    ground, R = checked(clients, used)
    n = len(ground)
    X, Y = frozenset[Client](), frozenset(ground)  # line 1
    R_X = R(X)
    R_Y = R(Y) if n else R_X
    trace = []
    for i, u in enumerate(ground, start=1):  # lines 2-3
        expect(used, outcomes(X, Y, ground[i - 1 : -1]))
        R_X_with = R(X | {u}) if i < n else R_Y
        R_Y_without = R(Y - {u}) if i < n else R_X
        a = R_X_with - R_X  # line 4
        b = R_Y_without - R_Y  # line 5
        drawn = draw()
        if estimate and not estimate.decides(probability, drawn, a, b):
            a, b = estimate.gains_in_float32(X, Y, u)
        p = probability(a, b)  # lines 6-11
        kept = drawn < p  # line 12: with probability p
        if kept:
            X, R_X = X | {u}, R_X_with  # line 13
        else:
            Y, R_Y = Y - {u}, R_Y_without  # line 15
        trace.append(Step(u, a, b, p, kept))
    return Filtering(kept=tuple(step.client for step in trace if step.kept), trace=tuple(trace))


def outcomes(X: frozenset[Client], Y: frozenset[Client], following: Sequence[Client]) -> Iterator[frozenset[Client]]:
    """The sets that the next steps may evaluate, in order.

    First the two sets of this step, then the sets of the following step for both outcomes of this one, and so on. Only
    the first two are certain to be needed.
    """
    states = [(X, Y)]
    for u in following:
        for X, Y in states:
            yield X | {u}
            yield Y - {u}
        states = [state for X, Y in states for state in ((X | {u}, Y), (X, Y - {u}))]
