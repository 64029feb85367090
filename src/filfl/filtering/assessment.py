"""What the server measures at every filtering, whatever the filter is: the clients' values and the honest gain."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from filfl.core.evidence import Evidence
from filfl.core.server import Assessment, Gain
from filfl.filtering.base import FilterFunction
from filfl.filtering.fitness import Fitness
from filfl.filtering.rewards import OnSamples, mean_and_stderr
from filfl.rng import stream
from filfl.values import METHODS, over_global

MIN_SAMPLES = 4
"""Two samples in each half of V, the fewest that have a standard error."""


@dataclass(frozen=True)
class Assess:
    """How filterings are assessed."""

    seed: int
    values: str | None = None
    """The name of a method of `filfl.values`; None where clients are not valued."""
    honest_gain: bool = True
    fitness: Fitness | None = None
    """Warns about V; None where V is not on the server."""

    def __call__(
        self,
        t: int,
        filter: FilterFunction,
        clients: Sequence[int],
        S_f: frozenset[int],
        reward: object,
        outputs: OnSamples | None,
        evidence: Evidence,
    ) -> Assessment:
        """`reward` is what the filter maximised, `outputs` the reward by which clients are valued.

        The gain needs the loss of each sample of V: where V is on clients, it is not measured.
        """
        made = Assessment(evidence)
        if self.values is not None and outputs is not None:
            made = client_values(self.values, outputs, evidence, self.seed, t)
        if self.honest_gain and isinstance(reward, OnSamples):
            gain = honest_gain(filter, clients, reward, self.seed, t)
            if gain is not None:
                in_sample = reward(S_f or frozenset(clients)) - reward(frozenset(clients))
                made = replace(made, honest_gain=gain, evidence=made.evidence.adding_gain(in_sample, gain.mean))
        if self.fitness is not None:
            after, warnings = self.fitness(made.evidence)
            made = replace(made, evidence=after, warnings=warnings)
        return made


def client_values(method: str, reward: OnSamples, evidence: Evidence, seed: int, t: int) -> Assessment:
    """The value of every client of a filtering, and the running estimates with it."""
    clients = reward.clients
    if len(clients) < 2:
        return Assessment(evidence)
    judged = reward.on_present_classes().capped()
    found, updates = METHODS[method](clients, judged, stream(seed, t, "values")), over_global(clients, judged)
    errors = [math.hypot(*both) for both in zip(found.stderr.tolist(), found.sampling_stderr.tolist(), strict=True)]
    measured = list(zip(clients, found.value.tolist(), errors, strict=True))
    after = evidence.adding(measured, zip(clients, updates.value.tolist(), updates.stderr.tolist(), strict=True))
    values = [
        {
            "client": k,
            "value": value if math.isfinite(value) else None,
            "stderr": error if math.isfinite(error) else None,
            "mean": after.of(k).value,
            "mean_stderr": after.of(k).stderr,
            "update": after.updates[k].value,
            "update_stderr": after.updates[k].stderr,
        }
        for k, value, error in measured
    ]
    return Assessment(after, values)


def honest_gain(filter: FilterFunction, clients: Sequence[int], reward: OnSamples, seed: int, t: int) -> Gain | None:
    """The cross-fitted gain of a filter over keeping all clients.

    V is split into two random halves. The filter chooses on one half, and its gain is measured on the other, both
    ways. The filter does without its memory of earlier filterings, which has seen all of V.
    """
    m = reward.num_samples
    if m < MIN_SAMPLES or set(clients) - set(reward.clients):
        return None
    halves = [np.sort(half) for half in np.array_split(stream(seed, t, "halves").permutation(m), 2)]
    gains = []
    for i, (chosen, measured) in enumerate((halves, halves[::-1])):
        kept = filter(clients, reward.on(chosen), stream(seed, t, f"filter-half-{i}")).kept
        there = reward.on(measured)
        all_clients, filtered = there.sample_losses(clients), there.sample_losses(cast(Sequence[int], kept) or clients)
        gains.append(all_clients - filtered)
    mean, stderr = mean_and_stderr(np.concatenate(gains))
    return Gain(float(mean), float(stderr)) if np.isfinite([mean, stderr]).all() else None
