"""Least squares: a strongly convex problem with a known optimum, for measuring convergence."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
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
    optimum (`distance`) and, in filter rounds in which all clients train, the terms of Section 4 that depend on S^f:
    the filtering gap (`filtering_gap`), ||z_t - v_t|| (`filter_shift`), and the distance between w* and the optimum of
    the clients in S^f alone (`filter_bias`). The summary of the run has mu, L and gamma.
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
    """F(w) = 1/N sum_k F_k(w), Eq. (1) of the paper with p_k = 1/N, where F_k(w) = 1/2 w^T H_k w - b_k^T w + c_k."""

    hessians: NDArray[np.float64]
    """H_k: [N, d, d]"""
    linear: NDArray[np.float64]
    """b_k: [N, d]"""
    constants: NDArray[np.float64]
    """c_k: [N]"""

    @cached_property
    def hessian(self) -> NDArray[np.float64]:
        """H, the Hessian of F."""
        return np.asarray(self.hessians.mean(axis=0))

    @cached_property
    def optimum(self) -> NDArray[np.float64]:
        """w*"""
        return self.optimum_of(self._clients)

    @cached_property
    def mu(self) -> float:
        """The largest mu with which all F_k are mu-strongly convex (Assumption 2)."""
        return float(np.linalg.eigvalsh(self.hessians).min())

    @cached_property
    def L(self) -> float:
        """The smallest L with which all F_k are L-smooth (Assumption 1)."""
        return float(np.linalg.eigvalsh(self.hessians).max())

    @cached_property
    def gamma(self) -> float:
        """Gamma = F* - 1/N sum_k F_k*, the heterogeneity of Assumption 5. 0 if all clients have the same optimum."""
        return self._least(self._clients) - float(np.mean([self._least([k]) for k in self._clients]))

    def optimum_of(self, clients: Sequence[int]) -> NDArray[np.float64]:
        """The minimum of the mean of these clients' F_k; where it has several, that of the smallest norm."""
        ids = list(clients)
        found = np.linalg.lstsq(self.hessians[ids].mean(axis=0), self.linear[ids].mean(axis=0), rcond=None)[0]
        return np.asarray(found, dtype=np.float64)

    def distance(self, w: ArrayLike) -> float:
        """||w - w*||^2"""
        difference = np.asarray(w, dtype=np.float64) - self.optimum
        return float(difference @ difference)

    def excess(self, w: ArrayLike) -> float:
        """F(w) - F(w*)"""
        difference = np.asarray(w, dtype=np.float64) - self.optimum
        return float(difference @ self.hessian @ difference) / 2

    def gradient(self, w: ArrayLike) -> NDArray[np.float64]:
        """The gradient of F at w."""
        return np.asarray(self.hessian @ (np.asarray(w, dtype=np.float64) - self.optimum))

    def filter_terms(self, v: ArrayLike, z: ArrayLike, S_f: Sequence[int]) -> dict[str, float]:
        v, z = np.asarray(v, dtype=np.float64), np.asarray(z, dtype=np.float64)
        return {
            "filtering_gap": self.excess(v) - self.excess(z),
            "filter_shift": float(np.linalg.norm(z - v)),
            "filter_bias": float(np.linalg.norm(self.optimum_of(S_f) - self.optimum)),
        }

    def terms(self) -> dict[str, float]:
        """The constants of Section 4."""
        return {"mu": self.mu, "L": self.L, "gamma": self.gamma}

    @property
    def _clients(self) -> range:
        return range(len(self.hessians))

    def _least(self, clients: Sequence[int]) -> float:
        """The smallest value of the mean of these clients' F_k."""
        ids = list(clients)
        return float(self.constants[ids].mean() - self.linear[ids].mean(axis=0) @ self.optimum_of(ids) / 2)


def least_squares(data: FederatedData, weight_decay: float) -> LeastSquares:
    """F for F_k(w) = mean of (x . w - y)^2 over k's training samples + weight_decay/2 ||w||^2."""
    if data.classes or data.x.ndim != 2 or data.x.dtype != np.float32 or data.y.ndim != 1:
        raise DataError("the optimum needs rows of numbers and one number as target, such as data.name = ridge")
    features = data.x.shape[1]
    hessians, linear, constants = [], [], []
    for start, end in zip(data.offsets[:-1], data.train_ends, strict=True):
        X, y = data.x[start:end].astype(np.float64), data.y[start:end].astype(np.float64)
        hessians.append(2 / len(y) * X.T @ X + weight_decay * np.eye(features))
        linear.append(2 / len(y) * X.T @ y)
        constants.append(y @ y / len(y))
    problem = LeastSquares(np.array(hessians), np.array(linear), np.array(constants))
    if np.linalg.matrix_rank(problem.hessian) < features:
        raise DataError(
            f"there is no single optimum: the samples do not span the {features} features; "
            "set training.weight_decay above 0 or use more samples"
        )
    return problem
