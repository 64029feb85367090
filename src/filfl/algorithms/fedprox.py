"""FedProx.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated Optimization in Heterogeneous Networks. MLSys 2020.
"""

from dataclasses import dataclass

from torch import Tensor

from filfl.algorithms.base import Algorithm
from filfl.config.schema import NonNegative


@dataclass(frozen=True, kw_only=True)
class FedProx(Algorithm):
    """Each client minimises F_k(w) + mu/2 ||w - w_t||^2, which keeps it near the global model."""

    mu: NonNegative = 0.01
    """The weight of the penalty. 0 is FedAvg; the larger mu, the closer clients stay to the global model."""

    def penalty_gradient(self, w: Tensor, w_t: Tensor) -> Tensor | None:
        return self.mu * (w - w_t) if self.mu else None
