"""What a filter is: clients and a reward in, the clients to keep out."""

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol, TypeVar, cast

import numpy as np

Client = TypeVar("Client", bound=Hashable)
Reward = Callable[[frozenset[Client]], float]
"""R(S): what is maximised over the subsets S of the clients."""


@dataclass(frozen=True)
class Step:
    """One client's decision. a and b are None where a filter decides without marginal gains."""

    client: Hashable
    a: float | None
    b: float | None
    p: float
    kept: bool


@dataclass(frozen=True)
class Filtering:
    """What a filter decided: the clients it keeps, in the order visited, and how it came to that."""

    kept: tuple[Hashable, ...]
    trace: tuple[Step, ...] = ()
    runners_up: tuple[tuple[Hashable, ...], ...] = ()
    """Other sets that came close, best first, where a filter has some: see `filter.verify`."""


class Filter(Protocol):
    """Every filter has this shape; those without chance leave `rng` alone."""

    def __call__(self, clients: Sequence[Client], reward: Reward[Client], rng: np.random.Generator, /) -> Filtering: ...


def checked(clients: Sequence[Client], reward: Reward[Client]) -> tuple[list[Client], Reward[Client]]:
    """The clients as a list without repetition, and the reward with a check that it is a number."""
    ground = list(clients)
    if len(set(ground)) != len(ground):
        raise ValueError("a client stands twice in the list to filter")

    def finite(subset: frozenset[Client]) -> float:
        value = float(reward(subset))
        if not math.isfinite(value):
            raise ValueError(f"the reward of {set(subset) or 'the empty set'} is {value}; it must be finite")
        return value

    return ground, finite


def expect(reward: Reward[Client], subsets: Iterator[frozenset[Client]]) -> None:
    """Tell a reward which sets may be asked for next, the next one first.

    One that can evaluate several sets `at_once` then does so, unless it has the next one already. That changes no
    decision; any other reward is evaluated set by set, as it is asked.
    """
    at_once = getattr(reward, "at_once", 1)
    if at_once > 1 and (sets := list(islice(subsets, at_once))):
        cast(Any, reward).expect(sets)
