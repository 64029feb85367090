"""Rewards in half precision, for decisions that are those of float32.

A greedy filter compares two gains. Where they differ by more than half precision can err, both precisions decide alike.
Elsewhere the gains are computed again in float32. The error is measured in every filtering.
"""

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from filfl.filtering.rewards import AverageReward

CERTAIN = 4.5
"""How many standard deviations of the error of a - b, which has four rewards, are expected to contain it."""


class Estimate:
    """R(S) in half precision, and a bound of its error."""

    def __init__(self, exact: "AverageReward", half: "AverageReward", ground: Sequence[Any]) -> None:
        """Measures the error on a few sets of different sizes."""
        self._exact, self._half, self.at_once = exact, half, half.at_once
        sets = _different_sizes(ground)
        exact.expect(sets)
        half.expect(sets)
        errors = [half(S) - exact(S) for S in sets]
        self.error = CERTAIN * math.hypot(*errors) / math.sqrt(len(errors))
        """For each of the two gains: together, twice this is `CERTAIN` times the error of a - b, which is that of four
        rewards, and so twice that of one."""

    def __call__(self, subset: frozenset[int]) -> float:
        return self._half(subset)

    def expect(self, subsets: Sequence[frozenset[int]]) -> None:
        self._half.expect(subsets)

    def decides(self, probability: Callable[[float, float], float], drawn: float, a: float, b: float) -> bool:
        """Whether the gains a and b lead to the same decision, drawn < probability(a, b), as those of float32.

        The probability must not fall with a, nor rise with b.
        """
        e = self.error
        return (drawn < probability(a - e, b + e)) == (drawn < probability(a + e, b - e))

    def gains_in_float32(self, X: frozenset[Any], Y: frozenset[Any], u: Any) -> tuple[float, float]:
        """a = R(X + u) - R(X) and b = R(Y - u) - R(Y) in float32."""
        R, sets = self._exact, (X | {u}, Y - {u}, X, Y)
        R.expect(sets[:2])
        R.expect(sets[2:])
        with_u, without_u, before, all_before = map(R, sets)
        return with_u - before, without_u - all_before


def _different_sizes(ground: Sequence[Any]) -> list[frozenset[Any]]:
    """Five sets, the first three of which a greedy filter evaluates anyway."""
    every, first, half = frozenset(ground), frozenset(ground[:1]), frozenset(ground[: len(ground) // 2])
    return [S for S in dict.fromkeys([every, first, every - first, half, every - half]) if S]
