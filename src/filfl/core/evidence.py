"""What a run remembers from filtering to filtering: the running estimate of each client's value, and numbers of the
filter's own."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

FilterMemory = Mapping[int, tuple[float, ...]]
"""A few numbers per client that a filter remembers from one filtering to the next."""

PREFIX = "filtering set: "
"""The notes of a record that begin with this are warnings about V."""
MEMORY = 0.95
"""How much a measurement counts after each further measurement of the same client: those of about the last twenty
count, so that a client that improves, or begins to fail, is seen."""
LAST_GAINS = 5


@dataclass(frozen=True)
class Measured:
    """The values of one client so far, as three sums."""

    weighted: float = 0.0
    """Of value / stderr."""
    precision: float = 0.0
    """Of 1 / stderr."""
    count: float = 0.0
    """Of 1."""

    def adding(self, value: float, stderr: float) -> "Measured":
        if not (math.isfinite(value) and math.isfinite(stderr) and stderr > 0):
            return self
        return Measured(
            value / stderr + MEMORY * self.weighted,
            1 / stderr + MEMORY * self.precision,
            1 + MEMORY * self.count,
        )

    @property
    def value(self) -> float | None:
        """The mean of the values, weighted by 1 / stderr; None before the first one."""
        return self.weighted / self.precision if self.precision else None

    @property
    def stderr(self) -> float | None:
        """Its standard error. All filterings use the same V, so measuring again does not make it smaller."""
        return self.count / self.precision if self.precision else None


@dataclass(frozen=True)
class Evidence:
    """The estimates of all clients that were part of a filtering."""

    clients: Mapping[int, Measured] = field(default_factory=dict)
    """Their values."""
    updates: Mapping[int, Measured] = field(default_factory=dict)
    """How much better each client is than no update at all: see `filfl.values.over_global`."""
    filterings: int = 0
    """How many filterings measured values."""
    gains: tuple[tuple[float, float], ...] = ()
    """The gain in loss of S^f over all clients, in-sample and cross-fitted, of the last filterings."""
    warned: frozenset[str] = frozenset()
    """The warnings about V that were given."""

    def of(self, client: int) -> Measured:
        return self.clients.get(client, Measured())

    def adding(
        self, measured: Iterable[tuple[int, float, float]], updates: Iterable[tuple[int, float, float]] = ()
    ) -> "Evidence":
        """With further measurements (client, value, stderr), of the values and of the updates."""
        clients = {k: self.of(k).adding(value, error) for k, value, error in measured}
        changed = {k: self.updates.get(k, Measured()).adding(value, error) for k, value, error in updates}
        return replace(
            self,
            clients={**self.clients, **clients},
            updates={**self.updates, **changed},
            filterings=self.filterings + 1,
        )

    def auc(self, faulty: frozenset[int]) -> float | None:
        """How well the estimates find these clients: see `auc`."""
        known = {k: each.value / each.stderr for k, each in self.clients.items() if each.value and each.stderr}
        return auc([known[k] for k in known], [k in faulty for k in known])

    def adding_gain(self, in_sample: float, honest: float) -> "Evidence":
        return replace(self, gains=(*self.gains, (in_sample, honest))[-LAST_GAINS:])


def auc(scores: Sequence[float], faulty: Sequence[bool]) -> float | None:
    """The chance that a faulty client has a lower score than a healthy one: 1 is perfect, 0.5 is guessing. None unless
    there are clients of both kinds."""
    score, bad = np.asarray(scores, dtype=np.float64), np.asarray(faulty, dtype=bool)
    if bad.all() or not bad.any():
        return None
    low, high = score[bad][:, None], score[~bad][None, :]
    return float(np.mean((low < high) + 0.5 * (low == high)))
