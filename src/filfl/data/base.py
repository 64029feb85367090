"""The base classes of datasets: options with a `load`."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from filfl.config.schema import Count, Fraction, Positive, Section, Share
from filfl.data.federated import FederatedData
from filfl.data.partition import PARTITIONS, Indices
from filfl.data.samples import Owned, Pair, client_numbers
from filfl.data.split import floored
from filfl.rng import SETUP, stream

if TYPE_CHECKING:
    from filfl.config.config import Config
    from filfl.data.ridge import LeastSquares
    from filfl.models import Model

Images = NDArray[np.uint8]
Labels = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Dataset(Section, ABC):
    """A source of federated data."""

    noisy: Fraction = 0.0
    """The share of clients that get wrong labels, rounded to whole clients. 0 is none, 1 is all."""
    wrong_labels: Literal["random", "permuted"] = "random"
    """The labels of the noisy clients. random: every label is drawn at random. permuted: the classes are exchanged by a
    permutation that is the same for all of them, as if these clients agreed on a wrong numbering."""
    trusted: tuple[str, ...] = ()
    """The names of clients whose labels you trust. Where the filtering set or the test set has samples of the clients,
    it then has those of these clients only. Without it, bad clients judge too, and the judgement can be wrong."""

    @property
    def known_clients(self) -> int | None:
        """The number of clients, if it is known before the data is read."""
        return None

    def problems_with(self, config: "Config", data: FederatedData) -> list[str]:
        if not len(empty := np.flatnonzero(data.num_train < 1)):
            return []
        N = data.num_clients
        return [f"client {data.names[empty[0]]} has no training samples ({len(empty)} of {N} have none)"]

    def load(self, seed: int) -> FederatedData:
        data = self.read(seed)
        if self.trusted and not data.trusted:
            data = replace(data, trusted=tuple(client_numbers("data.trusted", self.trusted, data.names)))
        return data.with_wrong_labels(self.noisy, seed, self.wrong_labels)

    def known_problem(self, data: FederatedData, model: "Model", weight_decay: float) -> "LeastSquares | None":
        """The optimisation problem of this data and model, if its optimum is known."""
        return None

    def check_source(self) -> None:
        """Raise if the files of the dataset do not exist. A comparison calls it before it starts any run."""

    @abstractmethod
    def read(self, seed: int) -> FederatedData:
        """Read the source and split it into clients, without random labels."""


@dataclass(frozen=True, kw_only=True)
class ByClient(Dataset):
    """A dataset with clients of its own, each of which gives up shares of its samples."""

    filtering: Share | None = 0.05
    """The share of each client's samples outside the test set in the server's filtering set; 0 leaves nothing to
    filter with. With `trusted`, of each trusted client's."""
    validation: Share = 0.1
    """The share of each client's samples outside the test set that it validates on; 0 is none."""

    def hold_out(
        self,
        x: ArrayLike,
        y: ArrayLike,
        owners: ArrayLike,
        test: float | Pair | Owned | None,
        seed: int,
        names: NDArray[np.str_] | None = None,
    ) -> FederatedData:
        """Split the samples of every client. `test` is a share as well, or a test set. `names` are the names of the
        clients 0, 1, ..., where `owners` are numbers of them."""
        trusted: Sequence[Any] | None = self.trusted or None
        if trusted and names is not None:
            trusted = client_numbers("data.trusted", trusted, names)
        return FederatedData.from_arrays(
            x,
            y,
            owners,
            trusted=trusted,
            test=test,
            filtering=self.filtering,
            validation=self.validation,
            seed=seed,
        )


@dataclass(frozen=True, kw_only=True)
class Partitioned(Dataset):
    """A dataset without clients of its own: the training samples are partitioned over `clients`."""

    clients: Count = 20
    """The number of clients."""
    partition: Literal["iid", "dirichlet", "shards"] = "dirichlet"
    """How samples are assigned to clients. iid: uniformly. dirichlet: each class is divided among the clients in
    proportions drawn from Dirichlet(alpha). shards: samples are sorted by class and cut into clients x shards pieces,
    of which each client gets `shards`."""
    alpha: Positive = 0.5
    """With partition = "dirichlet": how equal clients are. Small: few classes per client and unequal sizes. Large:
    close to iid."""
    shards: Count = 2
    """With partition = "shards": the number of pieces per client. 1 is about one class per client."""
    min_size: Count = 10
    """The smallest number of samples per client, before validation. dirichlet moves samples from the largest clients
    to reach it; the other partitions are refused if a client has fewer."""
    filtering: Share = 0.1
    """The share of the remaining samples in the server's filtering set; 0 leaves nothing to filter with."""
    validation: Share = 0.1
    """The share of each client's samples that it validates on instead of training; 0 is none."""

    @property
    def known_clients(self) -> int | None:
        return self.clients

    def split(
        self, x: Images, y: Labels, order: Indices, test: Pair, seed: int, scale: ArrayLike, shift: ArrayLike = 0.0
    ) -> FederatedData:
        """Partition the samples in `order` over the clients, after a share `filtering` for the server."""
        server, private = np.split(order, [floored(self.filtering, len(order))])
        options = {"dirichlet": (self.alpha,), "shards": (self.shards,)}.get(self.partition, ())
        rng = stream(seed, SETUP, "partition")
        parts = PARTITIONS[self.partition](y[private], self.clients, self.min_size, rng, *options)
        owners = np.empty(len(private), dtype=np.int64)
        owners[np.concatenate(parts)] = np.repeat(np.arange(self.clients), [len(part) for part in parts])
        own, V = (x[private], y[private], owners), (x[server], y[server])
        return FederatedData.from_arrays(
            *own, test=test, filtering=V, validation=self.validation, seed=seed, scale=scale, shift=shift
        )


@dataclass(frozen=True, kw_only=True)
class Pooled(Partitioned):
    """A single pool of samples: the shares `test` and `filtering` are held out, the rest is partitioned."""

    test: Share = 0.2
    """The share of all samples in the test set."""

    @abstractmethod
    def arrays(self) -> tuple[Images, Labels, float]:
        """All samples as bytes, their labels, and the factor that scales a byte to [0, 1]."""

    def read(self, seed: int) -> FederatedData:
        x, y, scale = self.arrays()
        order = stream(seed, SETUP, "held-out").permutation(len(x))
        test, rest = np.split(order, [floored(self.test, len(x))])
        return self.split(x, y, rest, (x[test], y[test]), seed, scale)
