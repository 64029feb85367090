"""Adaptive optimisers on the server.

Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar, McMahan: Adaptive Federated Optimization. ICLR 2021.
"""

import math
from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from filfl.aggregation.base import Memory
from filfl.aggregation.server_optimizer import ServerOptimizer
from filfl.config.schema import Positive, Share


@dataclass(frozen=True, kw_only=True)
class FedOpt(ServerOptimizer):
    """w_(t+1) = w_t + eta_t m_t / (sqrt(v_t) + tau) with m_t = beta_1 m_(t-1) + (1 - beta_1) d_t, where d_t is the mean
    of the updates. m_0 and v_0 are 0, as on Flower."""

    eta: Positive = 0.1
    """The step size of the server: about how far every weight moves per round."""
    beta_1: Share = 0.9
    """How much of the mean update of earlier rounds is kept. 0 is none."""
    beta_2: Share = 0.99
    """How much of the squared updates of earlier rounds is kept. 0 is none."""
    tau: Positive = 1e-3
    """Updates that are much smaller than this are not enlarged. Large values make the step proportional to the mean
    update."""

    def step(self, t: int, d_t: Tensor, memory: Memory) -> tuple[Memory, Tensor]:
        zeros = torch.zeros_like(d_t)
        m = self.beta_1 * memory.get("m", zeros) + (1 - self.beta_1) * d_t
        v = self.second_moment(memory.get("v", zeros), d_t.square())
        return {"m": m, "v": v}, self.eta_at(t) * m / (v.sqrt() + self.tau)

    def eta_at(self, t: int) -> float:
        """eta_t"""
        return self.eta

    @abstractmethod
    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        """v_t from v_(t-1) and d_t^2."""


@dataclass(frozen=True, kw_only=True)
class FedAdam(FedOpt):
    """Adam on the server, whose gradient is the mean of the updates.

    w_(t+1) = w_t + eta_t m_t / (sqrt(v_t) + tau), where m_t is a running mean of the mean update d_t, and
    v_t = beta_2 v_(t-1) + (1 - beta_2) d_t^2. As on Flower, eta_t = eta sqrt(1 - beta_2^(t+1)) / (1 - beta_1^(t+1))
    corrects that both start at 0; the paper does not.
    """

    def eta_at(self, t: int) -> float:
        return self.eta * math.sqrt(1 - self.beta_2 ** (t + 1)) / (1 - self.beta_1 ** (t + 1))

    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        return self.beta_2 * v + (1 - self.beta_2) * square


@dataclass(frozen=True, kw_only=True)
class FedYogi(FedOpt):
    """Yogi on the server, whose gradient is the mean of the updates.

    w_(t+1) = w_t + eta m_t / (sqrt(v_t) + tau), where m_t is a running mean of the mean update d_t, and
    v_t = v_(t-1) - (1 - beta_2) d_t^2 sign(v_(t-1) - d_t^2), which changes more slowly than that of Adam.
    """

    eta: Positive = 0.01
    """The step size of the server: about how far every weight moves per round."""

    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        return v - (1 - self.beta_2) * square * (v - square).sign()
