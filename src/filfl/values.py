"""Client values: how much each client lowers the loss on the filtering set V, and how sure that is.

    values = filfl.values.banzhaf(clients, reward, rng)
    values.value, values.stderr          # one number per client; positive means that the client helps

The functions take any set function R(S), as the filters do: the value of a client is a mean of its marginal
contributions R(S + k) - R(S). With the reward of a run (`filfl.filtering.OnSamples`), R(S) is minus the loss of the
average of S on V, sets are evaluated in batches, and there is a standard error over the samples of V.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic

import numpy as np

from filfl.filtering.base import Client, Reward
from filfl.filtering.rewards import Floats, OnSamples, mean_and_stderr

EXACT = 10
"""Up to this number of clients, Banzhaf and Shapley values are computed from all sets."""


@dataclass(frozen=True)
class Values(Generic[Client]):
    """One value per client, in the unit of the reward: positive where the client helps."""

    clients: tuple[Client, ...]
    value: Floats
    stderr: Floats
    """The standard error from the size of V, by the paired losses of its samples. NaN for a plain set function."""
    sampling_stderr: Floats
    """The standard error from the random sets. 0 where no set was drawn at random."""

    @classmethod
    def of(cls, clients: Sequence[Client], gains: Floats, sampling: Floats | None = None) -> "Values[Client]":
        """From the gain of each client on each sample of V: [n, m]."""
        return cls(tuple(clients), *mean_and_stderr(gains), np.zeros(len(clients)) if sampling is None else sampling)

    def __getitem__(self, client: Client) -> float:
        return float(self.value[self.clients.index(client)])


def leave_one_out(clients: Sequence[Client], reward: Reward[Client] | OnSamples) -> Values[Client]:
    """R(all) - R(all - k): how much worse the average of all clients is without client k."""
    n = len(clients)
    L = _losses(clients, reward, np.vstack([np.ones((1, n)), 1 - np.eye(n)]))
    return Values.of(clients, L[1:] - L[0])


def alone(clients: Sequence[Client], reward: OnSamples) -> Values[Client]:
    """Minus the loss of each client's own model on V, compared with the median client: what others add is not seen."""
    L = _losses(clients, reward, np.eye(len(clients)))
    values = Values.of(clients, -L)
    return replace(values, value=values.value - np.median(values.value))


def one_of_k(clients: Sequence[Client], reward: OnSamples) -> Values[Client]:
    """The value of a client as one of the K clients that are averaged, compared with the median client.

    Client k gets the weight 1/K, and the average of all clients the rest. This is what happens when k is selected: an
    update that is too large shows, which in the average of many clients is diluted.
    """
    n, K = len(clients), reward.K
    L = _losses(clients, reward, np.vstack([np.ones((1, n)), (1 - 1 / K) / n + np.eye(n) / K]))
    values = Values.of(clients, L[0] - L[1:])
    return replace(values, value=values.value - np.median(values.value))


def over_global(clients: Sequence[int], reward: OnSamples) -> Values[int]:
    """How much better a client is, as one of the K clients that are averaged, than the global model in its place.

    A client with few samples moves the model little, and less than a typical client: its value is below 0, but it is
    better than no update at all.
    """
    n, K = len(clients), reward.K
    weights = np.full((n + 1, n + 1), (1 - 1 / K) / n) * np.append(np.ones(n), 0) + np.eye(n + 1) / K
    L = reward.losses_at(weights)
    return Values.of(clients, L[n] - L[:n])


def banzhaf(
    clients: Sequence[Client], reward: Reward[Client] | OnSamples, rng: np.random.Generator, sets: int = 500
) -> Values[Client]:
    """The Banzhaf value: the mean of R(S) over the sets S with client k, minus that over the sets without it.

    With at most 10 clients, over all sets. With more, over random sets, which all serve all clients: each client is in
    a set with probability 1/2, and with a set its complement is drawn.
    """
    n = len(clients)
    if n <= EXACT:
        drawn = _all_sets(n)
    else:
        half = rng.random((-(-sets // 2), n)) < 0.5
        drawn = np.vstack([half, ~half])
    L = _losses(clients, reward, drawn)
    members = drawn.astype(np.float64)
    size = members.sum(axis=0)[:, None]
    gains = (1 - members).T @ L / (len(drawn) - size) - members.T @ L / size
    if n <= EXACT:
        return Values.of(clients, gains)
    means = L.mean(axis=1)
    # A set and its complement give one independent estimate: the loss without client k minus that with it.
    pairs = (1 - 2 * members[: len(half)]) * (means[: len(half)] - means[len(half) :])[:, None]
    return Values.of(clients, gains, mean_and_stderr(pairs.T)[1])


def shapley(
    clients: Sequence[Client], reward: Reward[Client] | OnSamples, rng: np.random.Generator, permutations: int = 30
) -> Values[Client]:
    """The Shapley value: the mean of R(S + k) - R(S), where S are the clients before k in a random order.

    The values sum to R(all) - R({}); with the reward of a run, the empty set is the current global model. With at most
    10 clients, over all orders. With more, over random orders, each with its reverse. Use it to share out a payment;
    to find bad clients, `one_of_k` and `leave_one_out` are better (docs/values.md).
    """
    n = len(clients)
    if n <= EXACT:
        sets = _all_sets(n)
        size = sets.sum(axis=1)
        # The share of all orders in which exactly S comes before k, for a set of this size.
        share = np.array([1 / (n * math.comb(n - 1, s)) if s < n else 0.0 for s in range(n + 1)])
        L = _losses(clients, reward, sets)
        before, after = np.where(sets, 0.0, share[size][:, None]), np.where(sets, share[size - 1][:, None], 0.0)
        return Values.of(clients, before.T @ L - after.T @ L)
    orders = [rng.permutation(n) for _ in range(-(-permutations // 2))]
    place = np.argsort([order for forward in orders for order in (forward, forward[::-1])], axis=1)
    # The sets of one order: its first 0, 1, ..., n clients.
    chains = place[:, None, :] < np.arange(n + 1)[None, :, None]
    L = _losses(clients, reward, chains.reshape(-1, n)).reshape(len(place), n + 1, -1)
    gains = np.take_along_axis(L[:, :-1] - L[:, 1:], place[:, :, None], axis=1)
    pairs = gains.mean(axis=2).reshape(-1, 2, n).mean(axis=1)
    return Values.of(clients, gains.mean(axis=0), mean_and_stderr(pairs.T)[1])


METHODS: dict[str, Callable[..., Values[int]]] = {
    "one-of-k": lambda clients, reward, rng: one_of_k(clients, reward),
    "alone": lambda clients, reward, rng: alone(clients, reward),
    "leave-one-out": lambda clients, reward, rng: leave_one_out(clients, reward),
    "banzhaf": banzhaf,
    "shapley": shapley,
}
"""By their names in `filter.values`, all called as (clients, reward, rng)."""


def _all_sets(n: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
    return (np.arange(2**n)[:, None] >> np.arange(n) & 1).astype(bool)


def _losses(clients: Sequence[Client], reward: Any, sets: Any) -> Floats:
    """The loss of sets of clients on each sample of V: rows of 0 and 1, or of weights -> [r, m].

    The loss of a plain set function R is -R, as if V had one sample.
    """
    if not isinstance(reward, OnSamples):
        members = [frozenset(k for k, there in zip(clients, row, strict=True) if there) for row in sets.tolist()]
        return np.array([[-float(reward(S))] for S in members])
    column = {k: i for i, k in enumerate(reward.clients)}
    weights = np.zeros((len(sets), len(column)))
    weights[:, [column[k] for k in clients]] = sets  # type: ignore[index]
    total = weights.sum(axis=1)
    empty = total == 0
    losses = np.empty((len(sets), reward.num_samples))
    losses[~empty] = reward.losses_at(weights[~empty] / total[~empty, None])
    if empty.any():
        losses[empty] = reward.global_losses()
    return losses
