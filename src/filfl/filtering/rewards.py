"""The rewards that a filter maximises: Eq. (3) of the paper, R(S) = c - F_V(mean of the weights of S), and a surrogate.

A reward is called with a set of clients. `evaluations` counts the inferences over V that it needed.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from filfl.filtering.exact_sums import Computed, ExactSums

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from filfl.evaluation import Loss
    from filfl.weights import Weights

C = 10.0
"""The constant that the authors used. A ratio of rewards is meaningful only when they are not negative."""

ParallelMap = Callable[[Callable[[int], Any], Iterable[int]], Iterable[Any]]


class CountedReward(Protocol):
    """R over the subsets of the clients that trained, with a count of its cost."""

    evaluations: int

    def __call__(self, subset: frozenset[int], /) -> float: ...

    def knows(self, subset: frozenset[int], /) -> bool:
        """Whether the reward of this set needs no further inference."""
        ...


@dataclass(frozen=True)
class Judgement:
    """How the sets of one filtering are judged."""

    loss: "Callable[[Tensor], float]"
    """Candidate weights -> their loss."""
    clients: list[int] = field(default_factory=list)
    """The clients on whose data the loss is measured; empty where the server has its own."""
    at_once: int = 1
    """How many candidates can be evaluated at a time, by `each`."""
    each: ParallelMap = map

    def reward(self, weights: "Mapping[int, Tensor]", w_t: "Weights", empty_is_global: bool = False) -> "AverageReward":
        """Eq. (3) for these clients' weights. `empty_is_global`: R({}) is the reward of w_t instead of 0."""
        return AverageReward(
            weights,
            self.loss,
            w_t.vector if empty_is_global else None,
            dtype=w_t.vector.dtype,
            at_once=self.at_once,
            each=self.each,
        )


class AverageReward:
    """R(S) = max(0, c - F_V(1/|S| sum_{k in S} w_k)); 0 where the loss is not finite.

    R({}) is 0, or, where `empty` gives weights for the empty set, their reward.

    Rewards are stored, so that asking twice costs nothing; `evaluations` counts the sets that were asked for.
    `dtype` is that of the means; the weights' own when unset. `at_once` sets can be evaluated at a time by `each`, a
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
        each: ParallelMap = map,
    ) -> None:
        self.evaluations = 0
        self.at_once = at_once
        self._each = each
        self._bit = {k: i for i, k in enumerate(weights)}
        self._sums = ExactSums(list(weights.values()), dtype)
        self._loss = loss
        self._c = c
        self._empty = empty
        self._known = {0: 0.0} if empty is None else {}
        self._ahead: dict[int, float] = {}

    def knows(self, subset: frozenset[int]) -> bool:
        """Whether the reward of this set needs no further inference."""
        return self._members(subset) in self._known

    def __call__(self, subset: frozenset[int]) -> float:
        members = self._members(subset)
        if members not in self._known:
            self._evaluate([members])
            self.evaluations += 1
            self._known[members] = self._ahead.pop(members)
        return self._known[members]

    def expect(self, subsets: Sequence[frozenset[int]]) -> None:
        """Evaluate in parallel the sets that may be asked for next, unless the first one is known already.

        They are counted only when they are asked for.
        """
        sets = [self._members(subset) for subset in subsets]
        if sets[0] not in self._known and sets[0] not in self._ahead:
            self._evaluate(sets)

    def _evaluate(self, sets: list[int]) -> None:
        new = [members for members in dict.fromkeys(sets) if members not in self._known and members not in self._ahead]
        for members, (reward, computed) in zip(new, self._each(self._reward, new) if new else (), strict=True):
            self._ahead[members] = reward
            if computed:
                self._sums.remember(computed)
        self._sums.forget(keep=2 * max(self.at_once, 2))

    def _members(self, subset: frozenset[int]) -> int:
        return sum(1 << self._bit[k] for k in subset)

    def _reward(self, members: int) -> tuple[float, Computed | None]:
        if not members:
            assert self._empty is not None
            return self._of_loss(self._loss(self._empty)), None
        mean, computed = self._sums.mean(members)
        return self._of_loss(self._loss(mean)), computed

    def _of_loss(self, loss: float) -> float:
        return max(0.0, self._c - loss) if math.isfinite(loss) else 0.0


class EnsembleReward:
    """R_ens(S) = max(0, c - loss(1/|S| sum_{k in S} z_k)), where z_k are the outputs of client k's weights on all of V.

    To first order in the distance between the clients' weights, the outputs of averaged weights are the averaged
    outputs. After one inference over V per client, which is what `evaluations` counts, any set costs one sum and one
    loss.
    """

    def __init__(
        self, outputs: "Mapping[int, Tensor]", targets: "Tensor", loss: "Loss", empty: "Tensor | None" = None
    ) -> None:
        self.evaluations = len(outputs) + (empty is not None)
        # One client with non-finite outputs would spoil every sum that it was part of.
        self._broken = frozenset(k for k, z in outputs.items() if not z.isfinite().all())
        shape = next((z.shape for z in outputs.values()), ())
        self._R = AverageReward(
            {k: z.flatten() for k, z in outputs.items() if k not in self._broken},
            lambda mean: float(loss(mean.view(shape), targets)),
            None if empty is None else empty.flatten(),
        )

    def __call__(self, subset: frozenset[int]) -> float:
        return 0.0 if subset & self._broken else self._R(subset)

    def knows(self, subset: frozenset[int]) -> bool:
        """Always true: no set needs another inference over V."""
        return True
