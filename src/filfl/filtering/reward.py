"""The reward of the real system: Eq. (3) of the paper, R(S) = c - F_V(mean of the weights of S)."""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import Tensor

C = 10.0
"""The constant that the authors ran with. A ratio of rewards only means something when they are not negative."""

ODD = 2.0**8
"""A client whose largest weight is this many times that of the median client, or this many times smaller, is a giant
or a dwarf. Sets with giants, and sets of dwarfs alone, are summed anew: running sums are made for the others' size."""

PIECE = 1 << 17
"""Weights that are added at a time: what they need on the way stays in the cache."""

FEW = 1 << 23
"""Where all clients together have no more weights, they are kept as they are added, too: 64 MB at most."""


@dataclass(frozen=True, eq=False)
class _Sum:
    """The sum of the weights of one set."""

    members: int
    total: "Tensor"


class AverageReward:
    """R(S) = max(0, c - F_V(1/|S| sum_{k in S} w_k)); 0 where the loss is not finite.

    R({}) is 0, or, where `empty` gives weights that stand for nobody, the reward of those.

    Sets are bit masks over the clients. The sum of a set is made from the nearest of the few sets seen last, by adding
    and subtracting the clients that differ: one O(d) step for a greedy filter. Weights are brought to multiples of one
    small power of two before they are added in float64. That makes every sum exact, so that it does not depend on the
    way it was come by: on what was evaluated before, or ahead of its time. Rewards are remembered; `evaluations` counts
    the sets that were asked for.

    `dtype` is that of the means; the weights' own when unset. `at_once` sets can be evaluated at a time, by `each`, a
    parallel `map`.
    """

    def __init__(
        self,
        weights: "Mapping[int, Tensor]",
        loss: "Callable[[Tensor], float]",
        empty: "Tensor | None" = None,
        c: float = C,
        dtype: "torch.dtype | None" = None,
        at_once: int = 1,
        each: Callable[[Callable[[int], Any], Iterable[int]], Iterable[Any]] = map,
    ) -> None:
        self.evaluations = 0
        self.at_once = at_once
        self._each = each
        self._weights = list(weights.values())
        self._dtype = dtype or (self._weights[0].dtype if self._weights else None)
        self._bit = {k: i for i, k in enumerate(weights)}
        self._loss = loss
        self._c = c
        self._empty = empty
        self._memo = {0: 0.0} if empty is None else {}
        self._ahead: dict[int, float] = {}
        self._sums: list[_Sum] = []
        self._rounded: dict[int, Tensor] = {}
        self._keep = sum(w.numel() for w in self._weights) <= FEW
        scales = [max(abs(float(end)) for end in w.aminmax()) if w.numel() else 0.0 for w in self._weights]
        middle = statistics.median([scale for scale in scales if math.isfinite(scale)] or [0.0])
        self._giants = sum(1 << i for i, scale in enumerate(scales) if not scale <= ODD * middle)
        self._dwarfs = sum(1 << i for i, scale in enumerate(scales) if scale < middle / ODD)
        # |sum| <= n * ODD * middle < 2^52 quanta: float64 holds every such multiple exactly.
        quantum = 2.0 ** (math.frexp(ODD * middle * len(scales))[1] - 52) if middle else 1.0
        # Next to this, float64 holds multiples of the quantum and nothing between: adding it rounds to them.
        self._rounder = 1.5 * 2.0**52 * quantum

    def knows(self, subset: frozenset[int]) -> bool:
        """Whether the reward of this set costs nothing more."""
        return self._members(subset) in self._memo

    def __call__(self, subset: frozenset[int]) -> float:
        members = self._members(subset)
        if members not in self._memo:
            self._evaluate([members])
            self.evaluations += 1
            self._memo[members] = self._ahead.pop(members)
        return self._memo[members]

    def expect(self, subsets: Sequence[frozenset[int]]) -> None:
        """Evaluate sets that may be asked for next, in parallel, unless the first is at hand. They count only once they
        are asked for."""
        sets = [self._members(subset) for subset in subsets]
        if sets[0] not in self._memo and sets[0] not in self._ahead:
            self._evaluate(sets)

    def _evaluate(self, sets: list[int]) -> None:
        new = [members for members in dict.fromkeys(sets) if members not in self._memo and members not in self._ahead]
        for members, (reward, made) in zip(new, self._each(self._reward, new) if new else (), strict=True):
            self._ahead[members] = reward
            if made:
                total, near = made
                # What was used last is dropped last: a greedy filter goes on from X and Y for many steps.
                self._sums.sort(key=lambda known: known is not near)
                self._sums.insert(0, total)
        del self._sums[2 * max(self.at_once, 2) :]

    def _members(self, subset: frozenset[int]) -> int:
        return sum(1 << self._bit[k] for k in subset)

    def _reward(self, members: int) -> tuple[float, tuple[_Sum, _Sum | None] | None]:
        """The reward of a set; and its sum with the sum that it was made from, where others may be made from it."""
        if not members:
            assert self._empty is not None
            return self._cut(self._loss(self._empty)), None
        if self._odd(members):
            return self._cut(self._loss(self._mean_anew(members))), None
        near = min(self._sums, key=lambda known: (known.members ^ members).bit_count(), default=None)
        if near is None or (near.members ^ members).bit_count() >= members.bit_count():
            near = None
        total, mean = self._sum_and_mean(members, near)
        return self._cut(self._loss(mean)), (total, near)

    def _cut(self, loss: float) -> float:
        return max(0.0, self._c - loss) if math.isfinite(loss) else 0.0

    def _odd(self, members: int) -> bool:
        """Whether a set's sum stands for itself: no other is made out of it, or it out of another."""
        return bool(members & self._giants) or not members & ~self._dwarfs

    def _mean_anew(self, members: int) -> "Tensor":
        first, *others = _bits(members)
        total = self._weights[first].double().clone()  # double() alone is no copy where it is double already
        for i in others:
            total += self._weights[i]
        return (total / members.bit_count()).to(self._dtype)

    def _sum_and_mean(self, members: int, near: _Sum | None) -> "tuple[_Sum, Tensor]":
        """The sum of a set, made from a near one where there is any, and the mean."""
        import torch

        mean = self._weights[0].new_empty(self._weights[0].shape, dtype=self._dtype)
        total = mean.new_empty(mean.shape, dtype=mean[:0].double().dtype)
        known, sum_so_far = (near.members, near.total) if near else (0, total.zero_())
        changes = [(i, -1) for i in _bits(known & ~members)] + [(i, 1) for i in _bits(members & ~known)]
        step = len(total) if self._keep else PIECE
        for start in range(0, len(total), step):
            here = slice(start, start + step)
            before, piece = sum_so_far[here], total[here]
            for i, sign in changes:
                before = torch.add(before, self._rounded_to_quanta(i, here), alpha=sign, out=piece)
            torch.div(piece, members.bit_count(), out=mean[here])
        return _Sum(members, total), mean

    def _rounded_to_quanta(self, i: int, here: slice) -> "Tensor":
        if i in self._rounded:
            return self._rounded[i]
        weights = self._weights[i][here]
        rounded = weights.to(weights[:0].double().dtype, copy=True).add_(self._rounder).sub_(self._rounder)
        if self._keep:
            self._rounded[i] = rounded
        return rounded


def _bits(members: int) -> list[int]:
    return [i for i in range(members.bit_length()) if members >> i & 1]
