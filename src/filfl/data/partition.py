"""How samples that belong to nobody are dealt to clients. Each returns the sample indices of every client.

Every sample goes to exactly one client, and no client gets fewer than `min_size`.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from filfl.errors import DataError

Indices = NDArray[np.int64]


def iid(labels: Indices, clients: int, min_size: int, rng: np.random.Generator) -> list[Indices]:
    """Everybody draws from the same urn; sizes differ by one at most."""
    _enough(len(labels), clients, min_size)
    return list(np.array_split(rng.permutation(len(labels)), clients))


def dirichlet(labels: Indices, clients: int, min_size: int, rng: np.random.Generator, alpha: float) -> list[Indices]:
    """Each class is split over the clients by proportions drawn from Dir(alpha).

    A small alpha gives a client few classes, a large one approaches iid. Clients below `min_size` are filled up
    with samples of whoever has most.
    """
    _enough(len(labels), clients, min_size)
    parts: list[list[int]] = [[] for _ in range(clients)]
    for label in np.unique(labels):
        samples = rng.permutation(np.flatnonzero(labels == label))
        shares = rng.dirichlet(np.full(clients, alpha))
        cuts = (np.cumsum(shares)[:-1] * len(samples)).astype(int)
        for part, piece in zip(parts, np.split(samples, cuts), strict=True):
            part.extend(piece.tolist())
    while min(map(len, parts)) < min_size:
        richest = max(parts, key=len)
        min(parts, key=len).append(richest.pop(int(rng.integers(len(richest)))))
    return [rng.permutation(np.array(part, dtype=np.int64)) for part in parts]


def shards(labels: Indices, clients: int, min_size: int, rng: np.random.Generator, shards_each: int) -> list[Indices]:
    """Samples sorted by label are cut into `clients x shards_each` pieces; everybody is dealt `shards_each`.

    One shard each is close to one class a client.
    """
    _enough(len(labels), clients, max(min_size, shards_each))
    shuffled = rng.permutation(len(labels))
    by_label = shuffled[np.argsort(labels[shuffled], kind="stable")]
    pieces = np.array_split(by_label, clients * shards_each)
    deal = rng.permutation(len(pieces)).reshape(clients, shards_each)
    parts = [np.concatenate([pieces[i] for i in hand]) for hand in deal]
    if min(map(len, parts)) < min_size:
        raise DataError(
            f"data.min_size = {min_size} is more than a client's {shards_each} shards hold; lower one of them"
        )
    return parts


def _enough(total: int, clients: int, min_size: int) -> None:
    if clients * min_size > total:
        raise DataError(
            f"data.clients: {clients} clients cannot have data.min_size = {min_size} samples each, "
            f"there are {total} to share; at most {total // min_size} clients can"
        )


def client_ids_of(parts: Sequence[Indices], total: int) -> Indices:
    """A partition (the sample indices of each client) as the owner of each of `total` samples."""
    owners = np.full(total, -1, dtype=np.int64)
    for k, part in enumerate(parts):
        owners[part] = k
    return owners


PARTITIONS: dict[str, Callable[..., list[Indices]]] = {"iid": iid, "dirichlet": dirichlet, "shards": shards}
