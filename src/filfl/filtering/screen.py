"""The screen: drop clients that hurt by themselves, whoever else is kept. It is not in the paper.

A filter judges combinations, so a client with a bad update can be kept because another one makes up for it. Two clients
that collude use this: one of them sends a bad update, the other the correction, and when only the first is averaged,
the model is lost. So each client is also judged alone, by its own update and the global model, both of which no other
client can change. This happens twice: `Screened` before the filter, where a client may claim logits, and `UpdateScreen`
in every round for what is averaged, because a client can be honest whenever it is filtered and attack in between.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from filfl.aggregation.base import Admitted
from filfl.filtering.base import Client, FilterFunction, Filtering, Reward, Step
from filfl.filtering.by_models import ensemble_reward
from filfl.filtering.filtering_set import FilteringSet
from filfl.filtering.rewards import SIGNIFICANT, Floats, OnSamples, fewest, standardised
from filfl.weights import Weights

CERTAIN = 4.0
"""How many standard errors of the loss on V leave no doubt, although nobody else shows what is usual."""


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


@dataclass(frozen=True)
class UpdateScreen:
    """Refuses updates that hurt by themselves, of those that would be averaged in a round."""

    V: FilteringSet

    def __call__(self, updates: Mapping[int, Admitted], w_t: Weights) -> dict[int, str]:
        """The clients whose updates are refused, and why.

        Each client is judged by the model in which the others send w_t. The outputs of that model are computed, not
        those of the client's own: an update can leave these as they are and destroy the average, for example by another
        order of the hidden units. An update hurts as in `hurting`. Of the few clients of a round, those that attack may
        be the majority, so it also hurts if it is worse than no update and than the best client beyond any doubt.
        """
        n = len(updates)
        if n < 2:
            return {}
        vectors = {k: update.weights.vector for k, update in updates.items()}
        reward = self._reward({k: w_t.vector + (vector - w_t.vector) / n for k, vector in vectors.items()}, w_t)
        if not reward.clients or not np.isfinite(reward.global_losses()).all():
            return {}
        losses, before = reward.losses_at(np.eye(len(reward.clients))), reward.global_losses()
        worst_first = np.argsort(-losses.mean(axis=1), kind="stable")
        median, best = losses[worst_first[len(losses) // 2]], losses[worst_first[-1]]

        def worse(than: Floats, z: float) -> NDArray[np.bool_]:
            return np.asarray(standardised(losses - than) > z)

        hurts = worse(before, SIGNIFICANT) & worse(median, SIGNIFICANT) | worse(before, CERTAIN) & worse(best, CERTAIN)
        as_one = f"its update alone, as one of {n},"
        broken = [k for k in updates if k not in reward.clients]
        refused = dict.fromkeys(broken, f"{as_one} gives outputs that are not finite") | {
            reward.clients[i]: f"{as_one} raises the loss on the filtering set from {before.mean():.4g} to "
            f"{losses[i].mean():.4g}"
            for i in np.flatnonzero(hurts).tolist()
        }
        left = {k: vector for k, vector in vectors.items() if k not in refused}
        return refused | self._together(left, w_t, fewest(n, n))

    def _together(self, vectors: Mapping[int, Tensor], w_t: Weights, least: int) -> dict[int, str]:
        """The same for updates that are harmless alone and hurt together: while the average is significantly worse than
        no update, the client is left out without which it is best. `least` clients stay."""
        left, refused = dict(vectors), dict[int, str]()
        while len(left) > least:
            mean = torch.stack(list(left.values())).mean(dim=0)
            if not self._hurts(mean, w_t):
                break
            without = {k: mean + (mean - vector) / (len(left) - 1) for k, vector in left.items()}
            reward = self._reward(without, w_t)
            losses = reward.losses_at(np.eye(len(reward.clients))).mean(axis=1)
            if not len(losses):
                break
            k = reward.clients[int(losses.argmin())]
            del left[k]
            refused[k] = "together with the other updates, its update raises the loss on the filtering set"
        return refused

    def _hurts(self, vector: Tensor, w_t: Weights) -> bool:
        """Whether this model is significantly worse than the global one."""
        reward = self._reward({0: vector}, w_t)
        if not reward.clients:
            return True
        return bool(standardised(reward.losses_at(np.eye(1)) - reward.global_losses())[0] > SIGNIFICANT)

    def _reward(self, vectors: Mapping[int, Tensor], w_t: Weights) -> OnSamples:
        return ensemble_reward(self.V, vectors, w_t).on_present_classes()


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
