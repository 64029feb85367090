"""Federated averaging.

McMahan, Moore, Ramage, Hampson, Aguera y Arcas: Communication-Efficient Learning of Deep Networks from
Decentralized Data. AISTATS 2017.
"""

from dataclasses import dataclass

from torch import Tensor

from filfl.algorithms.base import Algorithm


@dataclass(frozen=True, kw_only=True)
class FedAvg(Algorithm):
    """Each client minimises its own loss F_k(w)."""

    def penalty_gradient(self, w: Tensor, w_t: Tensor) -> Tensor | None:
        return None
