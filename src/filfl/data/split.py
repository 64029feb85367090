"""How the samples of each client are split: test, filtering, validation and training."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from filfl.rng import SETUP, stream

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Split:
    """The indices of the samples in each part."""

    clients: Indices
    """Client by client: its training samples, then its validation samples."""
    offsets: Indices
    """The samples of client k are `clients[offsets[k]:offsets[k + 1]]`."""
    train_ends: Indices
    """Where the training samples of each client end in `clients`."""
    filtering: Indices
    test: Indices
    test_clients: Indices
    """The client of each test sample."""


def split_samples(
    owners: Indices, held_out: NDArray[np.bool_], test: float, filtering: float, validation: float, seed: int
) -> Split:
    """Shuffle the samples of each client and split them. `owners` has the client of each sample.

    held_out: whether samples of each client are held out for the test set and the filtering set.
    test: a share of a client's samples. filtering, validation: shares of the remaining ones. All are rounded down.
    """
    counts = np.bincount(owners, minlength=len(held_out))
    starts = np.concatenate([[0], np.cumsum(counts)])
    shuffled = np.argsort(owners, kind="stable")
    for k in range(len(counts)):
        mine = slice(starts[k], starts[k + 1])
        shuffled[mine] = stream(seed, SETUP, "split", k).permutation(shuffled[mine])
    tested = _floored_each(test, counts) * held_out
    filtered = _floored_each(filtering, counts - tested) * held_out
    validated = _floored_each(validation, counts - tested)
    # The shuffled samples of each client are test | filtering | validation | train, the parts 0 to 3.
    cuts = np.stack([tested, tested + filtered, tested + filtered + validated])
    owners = np.repeat(np.arange(len(counts)), counts)
    part = (np.arange(len(owners)) - starts[owners] >= cuts[:, owners]).sum(axis=0)
    kept = part >= 2
    offsets = np.concatenate([[0], np.cumsum(counts - tested - filtered)])
    return Split(
        clients=shuffled[kept][np.argsort(2 * owners[kept] - part[kept], kind="stable")],
        offsets=offsets,
        train_ends=offsets[1:] - validated,
        filtering=shuffled[part == 1],
        test=shuffled[part == 0],
        test_clients=owners[part == 0],
    )


def floored(share: float, count: int) -> int:
    """The share of a count, rounded down. 0.29 of 100 is 29, although the floating-point product is below 29."""
    return int(_floored_each(share, np.array(count)))


def _floored_each(share: float, counts: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.asarray(np.floor(float(share) * counts + 1e-9), dtype=np.int64)
