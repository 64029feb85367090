"""Means of subsets of vectors, from sums that are exact.

Weights are rounded to multiples of one small power of two before they are added in float64. That makes every sum exact,
so that it does not depend on the order of the additions, on what was evaluated before, or on parallel evaluation.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor

OUTLIER = 2.0**8
"""A vector whose largest entry is this many times that of the median vector is a large outlier; one that is this many
times smaller is a small outlier. Sets with large outliers, and sets of small outliers alone, are summed from scratch:
the rounding of the running sums suits the other vectors."""

PIECE = 1 << 17
"""Entries that are added at a time: the intermediate results stay in the cache."""

FEW = 1 << 23
"""Rounded copies are kept if all vectors together have at most this many entries, which is 64 MB."""


@dataclass(frozen=True, eq=False)
class SubsetSum:
    """The sum of the vectors of one set."""

    members: int
    total: "Tensor"


@dataclass(frozen=True, eq=False)
class Computed:
    """A new sum, and the known one that it was computed from."""

    sum: SubsetSum
    near: SubsetSum | None


class ExactSums:
    """Means of subsets of n vectors. A set is a bit mask over their indices.

    The sum of a set is computed from the nearest of the most recent sums, by adding and subtracting the vectors that
    differ: one O(d) step for a greedy filter. `mean` may be called from several threads; `remember` may not.
    """

    def __init__(self, vectors: "Sequence[Tensor]", dtype: "torch.dtype | None" = None) -> None:
        """`dtype` is that of the means; the vectors' own when unset."""
        self._vectors = vectors
        self._dtype = dtype or (vectors[0].dtype if vectors else None)
        self._recent: list[SubsetSum] = []
        self._rounded: dict[int, Tensor] = {}
        self._keep = sum(v.numel() for v in vectors) <= FEW
        scales = [max(abs(float(end)) for end in v.aminmax()) if v.numel() else 0.0 for v in vectors]
        middle = statistics.median([scale for scale in scales if math.isfinite(scale)] or [0.0])
        self._large = sum(1 << i for i, scale in enumerate(scales) if not scale <= OUTLIER * middle)
        self._small = sum(1 << i for i, scale in enumerate(scales) if scale < middle / OUTLIER)
        # |sum| <= n * OUTLIER * middle < 2^52 quanta: float64 holds every such multiple exactly.
        quantum = 2.0 ** (math.frexp(OUTLIER * middle * len(scales))[1] - 52) if middle else 1.0
        # Near this number, float64 holds multiples of the quantum only: adding and subtracting it rounds to them.
        self._rounder = 1.5 * 2.0**52 * quantum

    def mean(self, members: int) -> "tuple[Tensor, Computed | None]":
        """The mean of a non-empty set; and its sum for `remember`, where other sums may be computed from it."""
        if members & self._large or not members & ~self._small:
            return self._mean_from_scratch(members), None
        import torch

        near = min(self._recent, key=lambda known: (known.members ^ members).bit_count(), default=None)
        if near is not None and near.members == members:
            mean = near.total.new_empty(near.total.shape, dtype=self._dtype)
            torch.div(near.total, members.bit_count(), out=mean)
            return mean, None
        if near is None or (near.members ^ members).bit_count() >= members.bit_count():
            near = None
        total, mean = self._sum_and_mean(members, near)
        return mean, Computed(total, near)

    def remember(self, computed: Computed) -> None:
        """Keep a sum. The least recently used sums are dropped first: a greedy filter reuses X and Y for many steps."""
        self._recent.sort(key=lambda known: known is not computed.near)
        self._recent.insert(0, computed.sum)

    def forget(self, keep: int) -> None:
        """Drop all but the `keep` most recently used sums."""
        del self._recent[keep:]

    def _mean_from_scratch(self, members: int) -> "Tensor":
        first, *others = _bits(members)
        total = self._vectors[first].double().clone()  # double() alone does not copy a tensor that is double already
        for i in others:
            total += self._vectors[i]
        return (total / members.bit_count()).to(self._dtype)

    def _sum_and_mean(self, members: int, near: SubsetSum | None) -> "tuple[SubsetSum, Tensor]":
        import torch

        mean = self._vectors[0].new_empty(self._vectors[0].shape, dtype=self._dtype)
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
        return SubsetSum(members, total), mean

    def _rounded_to_quanta(self, i: int, here: slice) -> "Tensor":
        if i in self._rounded:
            return self._rounded[i]
        entries = self._vectors[i][here]
        rounded = entries.to(entries[:0].double().dtype, copy=True).add_(self._rounder).sub_(self._rounder)
        if self._keep:
            self._rounded[i] = rounded
        return rounded


def _bits(members: int) -> list[int]:
    return [i for i in range(members.bit_length()) if members >> i & 1]
