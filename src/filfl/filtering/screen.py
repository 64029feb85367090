"""The screen before a filter: drop clients that hurt by themselves, whoever else is kept. It is not in the paper.

A filter judges combinations, so a client with a bad update can be kept because another one makes up for it. Two clients
that collude use this: one of them sends a bad update, the other the correction, and when only the first is averaged,
the model is lost. So each client is also judged alone, by its own update and the global model, both of which no other
client can change.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from filfl.filtering.base import Client, FilterFunction, Filtering, Reward, Step
from filfl.filtering.rewards import SIGNIFICANT, OnSamples, fewest, standardised


@dataclass(frozen=True)
class Screened:
    """A filter that is not shown the clients that hurt by themselves."""

    filter: FilterFunction
    least: int = 1
    """The smallest number of clients that the filter is shown, also where more of them hurt; at least K, or half
    of the clients."""

    def __call__(self, clients: Sequence[Client], reward: Reward[Client], rng: np.random.Generator) -> Filtering:
        if not isinstance(reward, OnSamples):
            return self.filter(clients, reward, rng)
        dropped = frozenset(hurting(reward, self.least))
        filtering = self.filter([k for k in clients if k not in dropped], cast(Reward[Client], reward), rng)
        steps = tuple(Step(k, None, None, 0.0, False) for k in clients if k in dropped)
        return replace(filtering, trace=(*steps, *filtering.trace))


def hurting(reward: OnSamples, least: int = 1) -> list[int]:
    """The clients that hurt by themselves, worst first; at least K clients or half of them, and `least`, are not
    among them.

    A client is judged as one of the K clients that are averaged, where the other K - 1 send the global model. It hurts
    if the loss on V is then significantly higher than with no update at all, and than with the median client.
    """
    n, K = len(reward.clients), reward.K
    most = n - max(fewest(K, n), least)
    if most <= 0:
        return []
    reward = reward.on_present_classes()
    losses = reward.losses_near(np.append(np.zeros(n), 1.0), np.arange(n), 1 / K)
    worst_first = np.argsort(-losses.mean(axis=1), kind="stable")
    median = losses[worst_first[n // 2]]
    bad = (standardised(losses - median) > SIGNIFICANT) & (standardised(losses - reward.global_losses()) > SIGNIFICANT)
    return [reward.clients[i] for i in worst_first if bad[i]][:most]
