"""What a dataset is: options with a `load`."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from filfl.data.federated import FederatedData, Pair, floored
from filfl.data.partition import PARTITIONS, client_ids_of
from filfl.options import Count, Fraction, Positive, Share
from filfl.rng import SETUP, stream


@dataclass(frozen=True, kw_only=True)
class Dataset(ABC):
    """A source of data with clients. `noisy` of the clients get random labels: 0 is none, 1 is all."""

    noisy: Fraction = 0.0

    def load(self, seed: int) -> FederatedData:
        return self.read(seed).with_random_labels(self.noisy, seed)

    @abstractmethod
    def read(self, seed: int) -> FederatedData:
        """The data as its source has it, dealt to clients."""


def deal(
    x: NDArray[np.uint8],
    y: NDArray[np.int64],
    order: NDArray[np.int64],
    *,
    clients: int,
    partition: str,
    alpha: float,
    shards: int,
    min_size: int,
    test: Pair,
    filtering: float,
    validation: float,
    seed: int,
    scale: ArrayLike,
    shift: ArrayLike = 0.0,
) -> FederatedData:
    """Samples that belong to nobody, dealt to clients: of those in `order`, the first `filtering` go to the server."""
    server, private = np.split(order, [floored(filtering, len(order))])
    options: dict[str, dict[str, float]] = {"dirichlet": {"alpha": alpha}, "shards": {"shards_each": shards}}
    parts = PARTITIONS[partition](
        y[private], clients, min_size, stream(seed, SETUP, "partition"), **options.get(partition, {})
    )
    return FederatedData.from_arrays(
        x[private],
        y[private],
        client_ids_of(parts, len(private)),
        test=test,
        filtering=(x[server], y[server]),
        validation=validation,
        seed=seed,
        scale=scale,
        shift=shift,
    )


@dataclass(frozen=True, kw_only=True)
class Partitioned(Dataset):
    """A dataset without clients of its own: `test` and then `filtering` are cut off, the rest is dealt out."""

    clients: Count = 20
    partition: Literal["iid", "dirichlet", "shards"] = "dirichlet"
    alpha: Positive = 0.5
    shards: Count = 2
    min_size: Count = 10
    test: Share = 0.2
    filtering: Share = 0.1
    validation: Share = 0.1

    @abstractmethod
    def arrays(self) -> tuple[NDArray[np.uint8], NDArray[np.int64], float]:
        """All samples as bytes, their labels, and the scale that brings a byte into [0, 1]."""

    def read(self, seed: int) -> FederatedData:
        x, y, scale = self.arrays()
        order = stream(seed, SETUP, "held-out").permutation(len(x))
        test, rest = np.split(order, [floored(self.test, len(x))])
        return deal(
            x,
            y,
            rest,
            clients=self.clients,
            partition=self.partition,
            alpha=self.alpha,
            shards=self.shards,
            min_size=self.min_size,
            test=(x[test], y[test]),
            filtering=self.filtering,
            validation=self.validation,
            seed=seed,
            scale=scale,
        )
