"""Synthetic logistic data whose heterogeneity between clients is set by two numbers.

Li et al.: Federated Optimization in Heterogeneous Networks. MLSys 2020, Sec. 5.1: Synthetic(alpha, beta).
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from filfl.config.schema import Count, NonNegative, Share
from filfl.data.base import ByClient
from filfl.data.federated import FederatedData
from filfl.rng import SETUP, stream

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Synthetic(ByClient):
    """Synthetic(alpha, beta) of FedProx: y = argmax(W_k x + b_k), with its own W_k, b_k and inputs for each client.

    As in the code of FedProx's authors, alpha and beta are standard deviations.
    """

    alpha: NonNegative = 1.0
    """How much the models of the clients differ: u_k ~ N(0, alpha). At 0 all are drawn around the same mean."""
    beta: NonNegative = 1.0
    """How much the inputs of the clients differ: B_k ~ N(0, beta). At 0 all their means are drawn around 0."""
    iid: bool = False
    """Use one model and one input distribution for all clients; alpha and beta then have no effect."""
    clients: Count = 30
    """The number of clients."""
    features: Count = 60
    """The length of an input."""
    classes: Count = 10
    """The number of classes."""
    most: Count = 1000
    """The maximum number of samples per client. Sizes are lognormal(4, 2) + 50, so with 50 or less all are equal."""
    test: Share = 0.1
    """The share of each client's samples in the test set."""

    def read(self, seed: int) -> FederatedData:
        x, y = zip(*(self._samples(seed, k) for k in range(self.clients)), strict=True)
        arrays = np.concatenate(x), np.concatenate(y), np.repeat(np.arange(self.clients), [len(part) for part in y])
        # The number of outputs must not depend on whether the last class occurs.
        return replace(self.hold_out(*arrays, self.test, seed), classes=self.classes)

    def model(self, seed: int, k: int) -> tuple[Floats, Floats]:
        """W_k [features, classes] and b_k [classes], every entry from N(u_k, 1)."""
        rng = stream(seed, SETUP, "synthetic-model", None if self.iid else k)
        u = 0.0 if self.iid else rng.normal(0, self.alpha)
        return rng.normal(u, 1, (self.features, self.classes)), rng.normal(u, 1, self.classes)

    def _samples(self, seed: int, k: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        size = min(int(stream(seed, SETUP, "synthetic-size", k).lognormal(4, 2)) + 50, self.most)
        rng = stream(seed, SETUP, "synthetic-inputs", k)
        v = np.zeros(self.features) if self.iid else rng.normal(rng.normal(0, self.beta), 1, self.features)
        # Sigma is diagonal; the variance of coordinate j is j^(-1.2).
        deviation = np.arange(1, self.features + 1) ** -0.6
        x = rng.normal(v, deviation, (size, self.features)).astype(np.float32)
        W, b = self.model(seed, k)
        return x, np.argmax(x @ W + b, axis=1)
