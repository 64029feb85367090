"""Least squares: a strongly convex problem with a known optimum, for measuring convergence."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from filfl.config.schema import Count, NonNegative, Share
from filfl.data.base import ByClient
from filfl.data.federated import FederatedData
from filfl.errors import DataError
from filfl.rng import SETUP, stream

if TYPE_CHECKING:
    from filfl.models import Model


@dataclass(frozen=True, kw_only=True)
class Ridge(ByClient):
    """Least squares with a known optimum: y = x . (w0 + heterogeneity * delta_k) + noise * e; all draws are N(0, 1).

    With model.name = "linear", which minimises the mean squared error, the metrics include the squared distance to the
    optimum (`distance`) and, in filter rounds in which all clients train, the filtering gap (`filtering_gap`).
    """

    clients: Count = 20
    """The number of clients."""
    features: Count = 10
    """The length of an input, and so the number of weights."""
    samples: Count = 50
    """Samples per client, before test, filtering and validation samples are held out."""
    heterogeneity: NonNegative = 1.0
    """How far the optima of the clients are from w0. At 0 they differ only by the noise."""
    noise: NonNegative = 0.1
    """The standard deviation of the noise. At 0 the loss is 0 at each client's own optimum."""
    test: Share = 0.1
    """The share of each client's samples in the test set."""
    filtering: Share = 0.1

    def known_problem(self, data: FederatedData, model: "Model", weight_decay: float) -> "LeastSquares | None":
        return least_squares(data, weight_decay) if model.fits_least_squares else None

    def read(self, seed: int) -> FederatedData:
        w0 = stream(seed, SETUP, "ridge-optimum").normal(size=self.features)
        x, y = [], []
        for k in range(self.clients):
            rng = stream(seed, SETUP, "ridge-client", k)
            w = w0 + self.heterogeneity * rng.normal(size=self.features)
            x.append(rng.normal(size=(self.samples, self.features)))
            y.append(x[-1] @ w + self.noise * rng.normal(size=self.samples))
        arrays = np.concatenate(x), np.concatenate(y), np.repeat(np.arange(self.clients), self.samples)
        return self.hold_out(*arrays, self.test, seed)


@dataclass(frozen=True, eq=False)
class LeastSquares:
    """F(w) = 1/N sum_k F_k(w) = F(w*) + 1/2 (w - w*)^T H (w - w*): Eq. (1) of the paper with p_k = 1/N."""

    optimum: NDArray[np.float64]
    """w*"""
    hessian: NDArray[np.float64]
    """H"""

    def distance(self, w: ArrayLike) -> float:
        """||w - w*||^2"""
        difference = np.asarray(w, dtype=np.float64) - self.optimum
        return float(difference @ difference)

    def excess(self, w: ArrayLike) -> float:
        """F(w) - F(w*)"""
        difference = np.asarray(w, dtype=np.float64) - self.optimum
        return float(difference @ self.hessian @ difference) / 2


def least_squares(data: FederatedData, weight_decay: float) -> LeastSquares:
    """F for F_k(w) = mean of (x . w - y)^2 over k's training samples + weight_decay/2 ||w||^2.

    The gradient is 0 where (1/N sum_k 2/n_k X_k^T X_k + weight_decay I) w = 1/N sum_k 2/n_k X_k^T y_k.
    """
    if data.classes or data.x.ndim != 2 or data.x.dtype != np.float32 or data.y.ndim != 1:
        raise DataError("the optimum needs rows of numbers and one number as target, such as data.name = ridge")
    features, N = data.x.shape[1], data.num_clients
    hessian, linear = weight_decay * np.eye(features), np.zeros(features)
    for start, end in zip(data.offsets[:-1], data.train_ends, strict=True):
        X, y = data.x[start:end].astype(np.float64), data.y[start:end].astype(np.float64)
        hessian += 2 / (N * len(y)) * X.T @ X
        linear += 2 / (N * len(y)) * X.T @ y
    if np.linalg.matrix_rank(hessian) < features:
        raise DataError(
            f"there is no single optimum: the samples do not span the {features} features; "
            "set training.weight_decay above 0 or use more samples"
        )
    return LeastSquares(np.linalg.solve(hessian, linear).astype(np.float64), hessian)
