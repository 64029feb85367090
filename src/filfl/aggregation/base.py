"""What an aggregation is: the updates of A_t in, the next global model out."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from filfl.weights import Weights

ServerState = Mapping[str, Tensor]
"""What an aggregation remembers from round to round; empty at the start."""


@dataclass(frozen=True)
class Admitted:
    """An update that the guard let pass."""

    weights: Weights
    num_examples: int
    train_loss: float


@dataclass(frozen=True, kw_only=True)
class Aggregation(ABC):
    """(server state, w_t, updates) -> (server state, w_(t+1)).

    The updates come in the order of the clients' ids, so that the sum is the same bit for bit whoever answered
    first; a client that was drawn twice stands twice.
    """

    @abstractmethod
    def __call__(
        self, server: ServerState, w_t: Weights, updates: Sequence[Admitted]
    ) -> tuple[ServerState, Weights]: ...


def weighted_mean(updates: Sequence[Admitted], shares: Sequence[float], w_t: Weights) -> Weights:
    """sum_k share_k w_k, summed in float64, in the dtype of w_t. Integer buffers are those of the first client."""
    first = updates[0].weights
    total = torch.zeros_like(first.vector, dtype=torch.float64)
    for update, share in zip(updates, shares, strict=True):
        total.add_(update.weights.vector, alpha=share)
    return Weights((total / sum(shares)).to(w_t.vector.dtype), first.integers)
