"""The interface of a filter: it takes clients and a reward, and returns the clients to keep."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, ClassVar, Protocol, TypeVar, cast

import numpy as np

from filfl.config.schema import Section

Client = TypeVar("Client", bound=Hashable)
Reward = Callable[[frozenset[Client]], float]
"""R(S), the set function that a filter maximises over the subsets S of the clients."""


@dataclass(frozen=True)
class Step:
    """The decision on one client. a and b are None if the filter does not compute marginal gains."""

    client: Hashable
    a: float | None
    b: float | None
    p: float
    kept: bool


@dataclass(frozen=True)
class Filtering:
    """The result of a filter: the clients to keep, in the order visited, and the decision on each client."""

    kept: tuple[Hashable, ...]
    trace: tuple[Step, ...] = ()
    runners_up: tuple[tuple[Hashable, ...], ...] = ()
    """Other sets with a high reward, best first. `filter.verify` compares them with the kept set."""
    memory: Mapping[Hashable, tuple[float, ...]] = field(default_factory=dict)
    """A few numbers per client to remember: they are in `reward.memory` at the next filtering."""
    notes: tuple[str, ...] = ()
    """What else the record should say about this filtering."""


class FilterFunction(Protocol):
    """The call signature of every filter, including a user's own function."""

    def __call__(self, clients: Sequence[Client], reward: Reward[Client], rng: np.random.Generator, /) -> Filtering: ...


@dataclass(frozen=True, kw_only=True)
class Filter(Section, ABC):
    """Selects the clients S^f to keep. The fields of a subclass are its options in the section [filter]."""

    reward: ClassVar[str] = "average"
    """The reward that this filter maximises unless `filter.reward` is set: average or ensemble."""

    screened: ClassVar[bool] = True
    """Whether clients that hurt by themselves may be dropped before this filter is run: see `filter.screen`."""

    def knowing(self, faulty: frozenset[int]) -> "Filter":
        """This filter, in a simulation in which these clients are faulty. Only the oracle uses it."""
        return self

    @abstractmethod
    def __call__(self, clients: Sequence[Client], reward: Reward[Client], rng: np.random.Generator) -> Filtering:
        """The clients to keep. Random filters draw from `rng` only."""


def checked(clients: Sequence[Client], reward: Reward[Client]) -> tuple[list[Client], Reward[Client]]:
    """The clients as a list, and the reward with a check that its values are finite. Rejects repeated clients."""
    ground = list(clients)
    if len(set(ground)) != len(ground):
        raise ValueError("the list of clients to filter contains a client twice")

    def finite(subset: frozenset[Client]) -> float:
        value = float(reward(subset))
        if not math.isfinite(value):
            raise ValueError(f"the reward of {set(subset) or 'the empty set'} must be finite (got {value})")
        return value

    return ground, finite


def expect(reward: Reward[Client], subsets: Iterator[frozenset[Client]]) -> None:
    """Announce the sets that a filter may evaluate next, the next one first.

    A reward with `at_once` > 1 evaluates several of them together, unless it already knows the next one. This changes
    no decision. Any other reward is evaluated set by set.
    """
    at_once = getattr(reward, "at_once", 1)
    if at_once > 1 and (sets := list(islice(subsets, at_once))):
        cast(Any, reward).expect(sets)
