"""The updates that lower the loss on the server's own samples most.

Xie, Koyejo, Gupta: Zeno: Distributed Stochastic Gradient Descent with Suspicion-based Fault-tolerance. ICML 2019.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from filfl.aggregation.base import Admitted, Memory
from filfl.aggregation.robust import Stacked, finite, shares_of
from filfl.aggregation.server_side import WithV
from filfl.config.schema import NonNegative
from filfl.weights import Weights


@dataclass(frozen=True, kw_only=True)
class Zeno(Stacked, WithV):
    """The mean of the n - f updates that lower the loss on the filtering set V most.

    The score of an update g_k is F_V(w_t) - F_V(w_t + g_k) - rho ||g_k||^2: how much it lowers the loss, minus a
    penalty on its size. An update with a score that is not finite is never used. V is that of [filter], also without a
    filter, and all of it is used in every round; the paper draws a few samples.
    """

    rho: NonNegative = 0.0005
    """The weight of the penalty. 0 judges by the loss alone; large values choose the smallest updates."""

    def __call__(self, t: int, memory: Memory, w_t: Weights, updates: Sequence[Admitted]) -> tuple[Memory, Weights]:
        updates = finite(updates)
        if not updates:
            return memory, w_t
        stack, f = self.stacked(t, w_t, updates)
        scores = [self.score(stack.mean(row), w_t) for row in torch.eye(stack.n).to(stack.mix)]
        best = sorted(range(stack.n), key=lambda i: -scores[i])[: stack.n - f]
        chosen = [i for i in best if math.isfinite(scores[i])]
        return memory, stack.mean(shares_of(chosen, stack)) if chosen else w_t

    def score(self, w: Weights, w_t: Weights) -> float:
        """The score of an update that leads to w, without F_V(w_t), which is the same for all; -inf if it is not
        finite."""
        norm = float(self.server.trained(w.vector.double() - w_t.vector.double()).norm())
        score = -self.V.loss(Weights(w.vector, w_t.integers)) - self.rho * norm * norm
        return score if math.isfinite(score) else -math.inf
