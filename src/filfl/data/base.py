"""What a dataset is: options with a `load`."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from filfl.data.federated import FederatedData, client_ids_of, floored
from filfl.data.partition import PARTITIONS
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
        num_test = floored(self.test, len(x))
        num_filter = floored(self.filtering, len(x) - num_test)
        test, server, private = np.split(order, [num_test, num_test + num_filter])
        options: dict[str, dict[str, float]] = {
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
            test=(x[test], y[test]),
            filtering=(x[server], y[server]),
            validation=self.validation,
            seed=seed,
            scale=scale,
        )
