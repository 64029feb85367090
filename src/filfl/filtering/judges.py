"""On whose data the sets of a filtering are judged: the server's, or the clients' (Sections 2.2 and 5.3.3).

A judge gives, for one filtering, the loss of candidate weights. Its messages to clients are messages of the round, so
that their bytes are counted.
"""

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from torch import Tensor

from filfl.availability.base import Ids
from filfl.core.exchange import Exchange
from filfl.core.queries import LossQuery
from filfl.filtering.filtering_set import FilteringSet
from filfl.filtering.rewards import Judgement
from filfl.rng import stream
from filfl.weights import Weights


class Judge(Protocol):
    """Decides, at each filtering, on whose data its sets are judged."""

    def __call__(self, S_t: Ids, exchange: Exchange, /) -> Judgement: ...


@dataclass(frozen=True)
class OnServer:
    """The loss on the server's filtering set V."""

    V: FilteringSet

    def __call__(self, S_t: Ids, exchange: Exchange) -> Judgement:
        return self.V.judgement(exchange.w_t)


Trusted = Callable[[], Collection[int]]
"""The clients whose data is trusted. It is asked at every filtering: a federation does not know all of them before."""
NO_JUDGE = Judgement(lambda vector: math.nan, possible=False)


def _judges(S_t: Ids, trusted: Trusted | None) -> Ids:
    """The available clients that may judge: all, or the trusted ones."""
    return S_t if trusted is None else S_t[np.isin(S_t, list(trusted()))]


@dataclass(frozen=True)
class Variable:
    """The loss on the validation data of one random available client, a different one at each filtering."""

    seed: int
    trusted: Trusted | None = None
    """Only these clients judge; None is all."""

    def __call__(self, S_t: Ids, exchange: Exchange) -> Judgement:
        judges = _judges(S_t, self.trusted)
        if not len(judges):
            return NO_JUDGE
        k = int(stream(self.seed, exchange.t, "judge").choice(judges))

        def loss(vector: Tensor) -> float:
            weights = Weights(vector, exchange.w_t.integers)
            return float(exchange.query(LossQuery("validation"), [k], weights).get(k, math.nan))

        return Judgement(loss, [k])


@dataclass(frozen=True)
class Federated:
    """Eq. (2): the loss on every available client's training data, weighted by its share p_k of the examples."""

    seed: int
    trusted: Trusted | None = None
    """Only these clients judge; None is all."""

    def __call__(self, S_t: Ids, exchange: Exchange) -> Judgement:
        available = _judges(S_t, self.trusted)
        if not len(available):
            return NO_JUDGE
        judges = available.tolist()
        sizes = dict(zip(judges, exchange.num_examples(available).tolist(), strict=True))

        def loss(vector: Tensor) -> float:
            losses = exchange.query(LossQuery("train"), judges, Weights(vector, exchange.w_t.integers))
            total = sum(sizes[k] for k in losses)
            return sum(sizes[k] * value for k, value in losses.items()) / total if total else math.nan

        return Judgement(loss, judges)


JUDGES: dict[str, Callable[[int, Trusted | None], Judge]] = {"variable": Variable, "federated": Federated}
