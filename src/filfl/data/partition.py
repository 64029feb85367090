"""Partitions of a pool of samples over clients. Each function returns the sample indices of every client.

Every sample goes to exactly one client, and every client gets at least `min_size` samples.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from filfl.errors import DataError

Indices = NDArray[np.int64]


def iid(labels: Indices, clients: int, min_size: int, rng: np.random.Generator) -> list[Indices]:
    """A random partition. The sizes of the clients differ by at most one."""
    _check_total(len(labels), clients, min_size)
    return list(np.array_split(rng.permutation(len(labels)), clients))


def dirichlet(labels: Indices, clients: int, min_size: int, rng: np.random.Generator, alpha: float) -> list[Indices]:
    """Each class is split over the clients by proportions drawn from Dir(alpha).

    Clients below `min_size` receive samples from the client that has most.
    """
    _check_total(len(labels), clients, min_size)
    parts: list[list[int]] = [[] for _ in range(clients)]
    for label in np.unique(labels):
        samples = rng.permutation(np.flatnonzero(labels == label))
        shares = rng.dirichlet(np.full(clients, alpha))
        cuts = (np.cumsum(shares)[:-1] * len(samples)).astype(int)
        for part, piece in zip(parts, np.split(samples, cuts), strict=True):
            part.extend(piece.tolist())
    while min(map(len, parts)) < min_size:
        largest = max(parts, key=len)
        min(parts, key=len).append(largest.pop(int(rng.integers(len(largest)))))
    return [rng.permutation(np.array(part, dtype=np.int64)) for part in parts]


def shards(labels: Indices, clients: int, min_size: int, rng: np.random.Generator, shards_each: int) -> list[Indices]:
    """Samples sorted by label are cut into `clients x shards_each` shards; every client gets `shards_each` of them."""
    _check_total(len(labels), clients, max(min_size, shards_each))
    shuffled = rng.permutation(len(labels))
    by_label = shuffled[np.argsort(labels[shuffled], kind="stable")]
    pieces = np.array_split(by_label, clients * shards_each)
    assignment = rng.permutation(len(pieces)).reshape(clients, shards_each)
    parts = [np.concatenate([pieces[i] for i in mine]) for mine in assignment]
    if min(map(len, parts)) < min_size:
        raise DataError(f"data.min_size = {min_size} is more than data.shards = {shards_each} shards have; lower one")
    return parts


def _check_total(total: int, clients: int, min_size: int) -> None:
    if clients * min_size > total:
        raise DataError(
            f"data.clients: {clients} clients cannot have data.min_size = {min_size} samples each, "
            f"since there are {total} samples; at most {total // min_size} clients can"
        )


PARTITIONS: dict[str, Callable[..., list[Indices]]] = {"iid": iid, "dirichlet": dirichlet, "shards": shards}
