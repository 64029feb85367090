"""The reward of the real system: Eq. (3) of the paper, R(S) = c - F_V(mean of the weights of S)."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

C = 10.0
"""The constant that the authors ran with. A ratio of rewards only means something when they are not negative."""

ANCHORS = 4
"""How many sums are kept to go on from: X, Y and one step beyond each."""

RECOMPUTE = 1e6
"""A sum whose past was this much larger than itself has lost digits to cancellation, and is made anew."""


@dataclass(frozen=True, eq=False)
class _Anchor:
    """The sum of the weights of one set. `peak` is the largest weight scale that its arithmetic went through."""

    members: int
    total: "Tensor"
    peak: float


class AverageReward:
    """R(S) = max(0, c - F_V(1/|S| sum_{k in S} w_k)); 0 where the loss is not finite.

    R({}) is 0, or, where `empty` gives weights that stand for nobody, the reward of those.

    Sets are bit masks over the clients. The float64 sum of a set is made from the nearest of the few sets seen
    last by adding and subtracting the clients that differ: one O(d) step for a greedy filter. Rewards are
    remembered; `evaluations` counts the sets whose loss was computed.
    """

    def __init__(
        self,
        weights: "Mapping[int, Tensor]",
        loss: "Callable[[Tensor], float]",
        empty: "Tensor | None" = None,
        c: float = C,
    ) -> None:
        self.evaluations = 0
        self._weights = list(weights.values())
        self._bit = {k: i for i, k in enumerate(weights)}
        self._scale = [float(w.abs().max()) if w.numel() else 0.0 for w in self._weights]
        self._loss = loss
        self._c = c
        self._empty = empty
        self._memo = {0: 0.0} if empty is None else {}
        self._anchors: list[_Anchor] = []

    def knows(self, subset: frozenset[int]) -> bool:
        """Whether this set was evaluated before."""
        return self._members(subset) in self._memo

    def __call__(self, subset: frozenset[int]) -> float:
        members = self._members(subset)
        if members not in self._memo:
            self.evaluations += 1
            self._memo[members] = self._cut(self._loss(self._mean(members)))
        return self._memo[members]

    def _members(self, subset: frozenset[int]) -> int:
        return sum(1 << self._bit[k] for k in subset)

    def _cut(self, loss: float) -> float:
        return max(0.0, self._c - loss) if math.isfinite(loss) else 0.0

    def _mean(self, members: int) -> "Tensor":
        """The mean weights of a set, in the clients' own dtype."""
        if members == 0 and self._empty is not None:
            return self._empty
        anchor = self._sum(members)
        self._anchors = [anchor, *self._anchors][:ANCHORS]
        return (anchor.total / members.bit_count()).to(self._weights[0].dtype)

    def _sum(self, members: int) -> _Anchor:
        """The sum of a set, out of the nearest anchor where that saves work and no digits were lost."""
        scale = sum(self._scale[i] for i in _bits(members))
        near = min(self._anchors, key=lambda anchor: (anchor.members ^ members).bit_count(), default=None)
        if near is None or (near.members ^ members).bit_count() >= members.bit_count():
            return self._sum_anew(members, scale)
        self._anchors.remove(near)
        self._anchors.insert(0, near)  # used last, dropped last
        if near.peak > RECOMPUTE * scale:
            return self._sum_anew(members, scale)
        total = near.total.clone()
        for i in _bits(near.members & ~members):
            total -= self._weights[i]
        for i in _bits(members & ~near.members):
            total += self._weights[i]
        return _Anchor(members, total, max(near.peak, scale))

    def _sum_anew(self, members: int, scale: float) -> _Anchor:
        first, *others = _bits(members)
        total = self._weights[first].double().clone()  # double() alone is no copy where it is double already
        for i in others:
            total += self._weights[i]
        return _Anchor(members, total, scale)


def _bits(members: int) -> list[int]:
    return [i for i in range(members.bit_length()) if members >> i & 1]
