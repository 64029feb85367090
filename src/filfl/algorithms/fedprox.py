"""FedProx.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated Optimization in Heterogeneous Networks. MLSys 2020.
"""

from dataclasses import dataclass

from torch import Tensor

from filfl.algorithms.base import Algorithm
from filfl.options import NonNegative


@dataclass(frozen=True, kw_only=True)
class FedProx(Algorithm):
    """Clients are held near the global model: F_k(w) + mu/2 ||w - w_t||^2. mu = 0 is FedAvg."""

    mu: NonNegative = 0.01

    def penalty_gradient(self, w: Tensor, w_t: Tensor) -> Tensor | None:
        return self.mu * (w - w_t) if self.mu else None
