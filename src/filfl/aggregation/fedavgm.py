"""Federated averaging with momentum on the server.

Hsu, Qi, Brown: Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification. 2019.
"""

from dataclasses import dataclass

from torch import Tensor

from filfl.aggregation.base import Memory
from filfl.aggregation.server_optimizer import ServerOptimizer
from filfl.config.schema import Positive, Share


@dataclass(frozen=True, kw_only=True)
class FedAvgM(ServerOptimizer):
    """SGD with momentum on the server, whose gradient is the mean of the updates.

    w_(t+1) = w_t + eta v_t with v_t = momentum v_(t-1) + d_t, where d_t is the mean of the updates.
    """

    eta: Positive = 1.0
    """The step size of the server."""
    momentum: Share = 0.9
    """The momentum of the server. 0 is none: with eta = 1, the mean."""

    def step(self, t: int, d_t: Tensor, memory: Memory) -> tuple[Memory, Tensor]:
        v = self.momentum * memory["momentum"] + d_t if memory else d_t
        return {"momentum": v}, self.eta * v
