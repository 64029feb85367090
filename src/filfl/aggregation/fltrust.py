"""Updates weighted by how much they agree with an update of the server's own.

Cao, Fang, Liu, Gong: FLTrust: Byzantine-robust Federated Learning via Trust Bootstrapping. NDSS 2021.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from filfl.aggregation.base import Admitted, Memory
from filfl.aggregation.robust import Stacked, finite
from filfl.aggregation.server_side import WithV
from filfl.aggregation.stack import Stack
from filfl.weights import Weights


@dataclass(frozen=True, kw_only=True)
class FLTrust(Stacked, WithV):
    """The mean of the updates, weighted by how much they agree with an update of the server's own.

    The server trains the model on its filtering set V as a client does, which gives the update g_0. The trust score of
    an update g_k is max(0, cos(g_k, g_0)). Each update is scaled to the norm of g_0 and weighted by its trust score. If
    all of them are 0, the model is unchanged. V is that of [filter], also without a filter.
    """

    def __call__(self, t: int, memory: Memory, w_t: Weights, updates: Sequence[Admitted]) -> tuple[Memory, Weights]:
        updates = finite(updates)
        g_0 = self.server.trained(self.V.trained(t, w_t).vector.double() - w_t.vector.double())
        if not updates:
            return memory, w_t
        stack, _ = self.stacked(t, w_t, updates)
        norms, cosines = compared(stack, g_0)
        trust = cosines.clamp(min=0)
        if not trust.any():
            # Nobody agrees with the server. g_0 alone would be an update from the few samples of V.
            return memory, w_t
        shares = trust / trust.sum()
        w = stack.sum(shares * g_0.norm() / norms.clamp(min=1e-300))
        if len(g_0) < len(w.vector):  # of statistics, only a mean is meaningful
            w.vector[len(g_0) :] = stack.sum(shares).vector[len(g_0) :]
        return memory, w


def compared(stack: Stack, g_0: Tensor) -> tuple[Tensor, Tensor]:
    """[rows], [rows]: the norms of the rows and their cosines with g_0, over the weights of g_0. A cosine that is not
    defined is 0: that of a row of zeros, and all of them if the training of the server diverged.

    The norms are computed from the rows: those from inner products are inexact for sums of updates that cancel out.
    """
    squares, products = torch.zeros_like(stack.inner[0]), torch.zeros_like(stack.inner[0])
    for here, piece in stack.pieces():
        part = g_0[here]
        rows = piece[:, : len(part)]
        squares += rows.square().sum(dim=1)
        products += rows @ part
    norms = squares.sqrt()
    return norms, (products / (norms * g_0.norm())).nan_to_num(nan=0.0)
