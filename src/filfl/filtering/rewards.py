"""The rewards that a filter maximises: Eq. (3) of the paper, R(S) = c - F_V(mean of the weights of S), and a surrogate.

A reward is called with a set of clients. `evaluations` counts the inferences over V that it needed. Where the server
has V, a filter can also ask for the loss of each sample of V, of sets and of weighted sets: see `OnSamples`.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from filfl.core.evidence import FilterMemory
from filfl.errors import PluginError
from filfl.filtering.estimate import Estimate
from filfl.filtering.exact_sums import Computed, ExactSums

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from filfl.weights import Weights

C = 10.0
"""The constant that the authors used. A ratio of rewards is meaningful only when they are not negative."""
SIGNIFICANT = 2.0
"""How many standard errors of the loss on V make a difference significant."""

FEW_CLIENTS = 5
"""Up to this number of clients, half precision is not used: measuring its error costs more."""

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
ParallelMap = Callable[[Callable[[int], Any], Iterable[int]], Iterable[Any]]


class CountedReward(Protocol):
    """R over the subsets of the clients that trained, with a count of its cost."""

    evaluations: int

    def __call__(self, subset: frozenset[int], /) -> float: ...

    def knows(self, subset: frozenset[int], /) -> bool:
        """Whether the reward of this set needs no further inference."""
        ...


class OnSamples(ABC):
    """What a filter may ask a reward beside R(S), where the server has the filtering set V of m samples."""

    clients: Sequence[int]
    """The clients of the sets, in the order of the columns of `losses_at`. A client whose outputs on V are not finite
    is left out."""
    K: int = 1
    """The number of clients that are averaged per round."""
    num_samples: int
    """m, the number of samples of V."""
    memory: FilterMemory = MappingProxyType({})
    """What the filter remembered about each client in earlier filterings of this run: `Filtering.memory`."""

    @abstractmethod
    def losses_at(self, weights: Floats) -> Floats:
        """The loss of each sample of V, for averages with these weights: [r, clients] -> [r, m]. Rows sum to 1.

        One more column is the weight of the current global model.
        """

    def losses_near(self, center: Floats, which: Ints, share: float) -> Floats:
        """The loss of each sample of V for averages near one another: [len(which), m].

        `center` has the weights of one average, as a row of `losses_at`. Row i is that of (1 - share) center, plus
        `share` for client `clients[which[i]]`. The mean of s clients without one of them has share = -1 / (s - 1), that
        with one more client 1 / (s + 1).
        """
        weights = np.tile((1 - share) * center, (len(which), 1))
        weights[np.arange(len(which)), which] += share
        return self.losses_at(weights)

    @abstractmethod
    def global_losses(self) -> Floats:
        """The loss of each sample of V for the current global model: [m]."""

    @abstractmethod
    def on(self, rows: Ints) -> "OnSamples":
        """The same reward on these samples of V alone, without the memory of earlier filterings."""

    def on_present_classes(self) -> "OnSamples":
        """The same reward, where a model is asked only which of the classes in V a sample has.

        A client with classes that V does not have predicts them also for samples of V. This says nothing about the
        quality of the client, and it must not be dropped for it. The reward stays as it is if it does not know outputs,
        or if V has fewer than half of the classes.
        """
        return self

    def capped(self) -> "OnSamples":
        """The same reward, where no sample has a cross-entropy far above that of guessing.

        The loss of a confident mistake has no bound, so that a few of them would hide what all other samples say.
        """
        return self

    @abstractmethod
    def __call__(self, subset: frozenset[int], /) -> float: ...

    def sample_losses(self, subset: Collection[int] | Mapping[int, float]) -> Floats:
        """The loss of each sample of V for the average of a set: [m]. A mapping gives the weight of each client."""
        weighted = subset if isinstance(subset, Mapping) else dict.fromkeys(subset, 1.0)
        if not weighted or not weighted.keys() <= set(self.clients):
            raise PluginError(f"sample_losses needs some of the clients {list(self.clients)} (got {list(weighted)})")
        losses: Floats = self.losses_at(equal_weights(np.array([[weighted.get(k, 0.0) for k in self.clients]])))[0]
        return losses


def equal_weights(sets: Floats | NDArray[np.bool_]) -> Floats:
    """Sets as rows of 0 and 1 over the clients -> rows of weights that sum to 1. No set may be empty."""
    return np.asarray(sets / sets.sum(axis=1, keepdims=True), dtype=np.float64)


def mean_and_stderr(differences: Floats) -> tuple[Floats, Floats]:
    """The mean over the samples, the last axis, and its standard error; NaN with a single sample."""
    m = differences.shape[-1]
    mean: Floats = differences.mean(axis=-1)
    return mean, differences.std(axis=-1, ddof=1) / math.sqrt(m) if m > 1 else np.full_like(mean, math.nan)


def fewest(K: int, n: int) -> int:
    """The number of clients that are kept in any case: K of them, but of few clients only half."""
    return min(K, (n + 1) // 2)


def standardised(differences: Floats) -> Floats:
    """The mean over the samples divided by its standard error; 0 where nothing differs, or with a single sample."""
    mean, stderr = mean_and_stderr(differences)
    return np.divide(mean, stderr, out=np.zeros_like(mean), where=stderr > 0)


@dataclass(frozen=True)
class SampleJudgement:
    """How weights are judged on the single samples of V."""

    m: int
    losses: "Callable[[Tensor], Tensor]"
    """Candidate weights -> the loss of each sample."""
    on: "Callable[[Ints], Judgement]"
    """Some rows of V -> the judgement on these samples alone."""


@dataclass(frozen=True)
class Judgement:
    """How the sets of one filtering are judged."""

    loss: "Callable[[Tensor], float]"
    """Candidate weights -> their loss."""
    clients: list[int] = field(default_factory=list)
    """The clients on whose data the loss is measured; empty where the server has its own."""
    possible: bool = True
    """Whether there is any data to judge by: trusted clients may be absent."""
    at_once: int = 1
    """How many candidates can be evaluated at a time, by `each`."""
    each: ParallelMap = map
    samples: "SampleJudgement | None" = None
    """Losses on the single samples of V; None where the server does not have V."""
    in_half: "Judgement | None" = None
    """The same loss in half precision, where that is faster."""

    def reward(self, weights: "Mapping[int, Tensor]", w_t: "Weights", empty_is_global: bool = False) -> "AverageReward":
        """Eq. (3) for these clients' weights. `empty_is_global`: R({}) is the reward of w_t instead of 0."""
        empty, dtype = (lambda: w_t.vector) if empty_is_global else None, w_t.vector.dtype
        if self.samples is None:
            return AverageReward(weights, self.loss, empty, dtype=dtype, at_once=self.at_once, each=self.each)
        made = AverageRewardOnSamples(weights, w_t, empty, self, self.samples)
        if half := self.in_half:
            made.half = AverageReward(weights, half.loss, empty, C, dtype, half.at_once, half.each, made.sums)
        return made


class AverageReward:
    """R(S) = max(0, c - F_V(1/|S| sum_{k in S} w_k)); 0 where the loss is not finite.

    R({}) is 0, or, where `empty` gives weights for the empty set, their reward. It is called at most once.

    Rewards are stored, so that asking twice costs nothing; `evaluations` counts the sets that were asked for.
    `dtype` is that of the means; the weights' own when unset. `at_once` sets can be evaluated at a time by `each`, a
    parallel `map`.
    """

    def __init__(
        self,
        weights: "Mapping[int, Tensor]",
        loss: "Callable[[Tensor], float]",
        empty: "Callable[[], Tensor] | None" = None,
        c: float = C,
        dtype: "torch.dtype | None" = None,
        at_once: int = 1,
        each: ParallelMap = map,
        sums: ExactSums | None = None,
    ) -> None:
        """`sums`: those of another reward of the same weights."""
        self.evaluations = 0
        self.half: AverageReward | None = None
        """The same reward in half precision, where that is faster."""
        self.judged = False
        """Whether any loss so far was finite. If not, the rewards say nothing."""
        self.at_once = at_once
        self._each = each
        self._bit = {k: i for i, k in enumerate(weights)}
        self.sums = ExactSums(list(weights.values()), dtype) if sums is None else sums
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

    def estimate(self, ground: Sequence[Any]) -> Estimate | None:
        """The rewards in half precision, with their error on sets of these clients; None where there are none."""
        return Estimate(self, self.half, ground) if self.half is not None and len(ground) > FEW_CLIENTS else None

    @property
    def half_evaluations(self) -> int:
        """The number of inferences in half precision, beside `evaluations`."""
        return self.half.evaluations if self.half is not None else 0

    def _evaluate(self, sets: list[int]) -> None:
        new = [members for members in dict.fromkeys(sets) if members not in self._known and members not in self._ahead]
        for members, (reward, computed) in zip(new, self._each(self._reward, new) if new else (), strict=True):
            self._ahead[members] = reward
            if computed:
                self.sums.remember(computed)
        self.sums.forget(keep=2 * max(self.at_once, 2))

    def _members(self, subset: frozenset[int]) -> int:
        return sum(1 << self._bit[k] for k in subset)

    def _reward(self, members: int) -> tuple[float, Computed | None]:
        if not members:
            assert self._empty is not None
            return self._of_loss(self._loss(self._empty())), None
        mean, computed = self.sums.mean(members)
        return self._of_loss(self._loss(mean)), computed

    def _of_loss(self, loss: float) -> float:
        self.judged |= math.isfinite(loss)
        return max(0.0, self._c - loss) if math.isfinite(loss) else 0.0


class AverageRewardOnSamples(AverageReward, OnSamples):
    """The average reward where the server has V. Every row of `losses_at` costs one inference over V."""

    def __init__(
        self,
        weights: "Mapping[int, Tensor]",
        w_t: "Weights",
        empty: "Callable[[], Tensor] | None",
        judgement: Judgement,
        samples: SampleJudgement,
    ) -> None:
        dtype = w_t.vector.dtype
        super().__init__(weights, judgement.loss, empty, dtype=dtype, at_once=judgement.at_once, each=judgement.each)
        self.clients, self.num_samples = list(weights), samples.m
        self._weights, self._w_t, self._samples = weights, w_t, samples

    def losses_at(self, weights: Floats) -> Floats:
        import torch

        def losses(row: int) -> Floats:
            mean = torch.zeros_like(self._w_t.vector, dtype=torch.float64)
            vectors = [*(self._weights[k] for k in self.clients), self._w_t.vector]
            for vector, weight in zip(vectors, weights[row].tolist(), strict=False):
                if weight:
                    mean += weight * vector
            return self._samples.losses(mean.to(self._w_t.vector.dtype)).double().cpu().numpy()

        self.evaluations += len(weights)
        return np.stack(list(self._each(losses, range(len(weights)))))

    def global_losses(self) -> Floats:
        self.evaluations += 1
        return self._samples.losses(self._w_t.vector).double().cpu().numpy()

    def on(self, rows: Ints) -> "AverageRewardOnSamples":
        part = self._samples.on(rows).reward(self._weights, self._w_t, self._empty is not None)
        assert isinstance(part, AverageRewardOnSamples)
        part.K = self.K
        return part
