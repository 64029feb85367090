"""The base classes of datasets: options with a `load`."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from filfl.data.federated import FederatedData, Pair, floored
from filfl.data.partition import PARTITIONS, client_ids_of
from filfl.options import Count, Fraction, Positive, Share
from filfl.rng import SETUP, stream


@dataclass(frozen=True, kw_only=True)
class Dataset(ABC):
    """A source of federated data. The share `noisy` of the clients get random labels: 0 is none, 1 is all."""

    noisy: Fraction = 0.0

    def load(self, seed: int) -> FederatedData:
        return self.read(seed).with_random_labels(self.noisy, seed)

    @abstractmethod
    def read(self, seed: int) -> FederatedData:
        """Read the source and split it into clients, without random labels."""


@dataclass(frozen=True, kw_only=True)
class Partitioned(Dataset):
    """A dataset without clients of its own: the training samples are partitioned over `clients`."""

    clients: Count = 20
    partition: Literal["iid", "dirichlet", "shards"] = "dirichlet"
    alpha: Positive = 0.5
    shards: Count = 2
    min_size: Count = 10
    filtering: Share = 0.1
    validation: Share = 0.1

    def split(
        self,
        x: NDArray[np.uint8],
        y: NDArray[np.int64],
        order: NDArray[np.int64],
        test: Pair,
        seed: int,
        scale: ArrayLike,
        shift: ArrayLike = 0.0,
    ) -> FederatedData:
        """Partition the samples in `order` over the clients, after a share `filtering` for the server."""
        server, private = np.split(order, [floored(self.filtering, len(order))])
        options: dict[str, dict[str, Any]] = {
            "dirichlet": {"alpha": self.alpha},
            "shards": {"shards_each": self.shards},
        }
        parts = PARTITIONS[self.partition](
            y[private],
            self.clients,
            self.min_size,
            stream(seed, SETUP, "partition"),
            **options.get(self.partition, {}),
        )
        return FederatedData.from_arrays(
            x[private],
            y[private],
            client_ids_of(parts, len(private)),
            test=test,
            filtering=(x[server], y[server]),
            validation=self.validation,
            seed=seed,
            scale=scale,
            shift=shift,
        )


@dataclass(frozen=True, kw_only=True)
class Pooled(Partitioned):
    """A single pool of samples: the shares `test` and `filtering` are held out, the rest is partitioned."""

    test: Share = 0.2

    @abstractmethod
    def arrays(self) -> tuple[NDArray[np.uint8], NDArray[np.int64], float]:
        """All samples as bytes, their labels, and the factor that scales a byte to [0, 1]."""

    def read(self, seed: int) -> FederatedData:
        x, y, scale = self.arrays()
        order = stream(seed, SETUP, "held-out").permutation(len(x))
        test, rest = np.split(order, [floored(self.test, len(x))])
        return self.split(x, y, rest, (x[test], y[test]), seed, scale)
