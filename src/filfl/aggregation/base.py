"""The interface of an aggregation: it computes the next global model from the updates of A_t."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from filfl.config.schema import Section
from filfl.weights import Weights

if TYPE_CHECKING:
    from filfl.aggregation.server_side import ServerSide

Memory = Mapping[str, Tensor]
"""What an aggregation remembers from round to round, such as a momentum; empty at the start."""

PIECE = 1 << 17
"""The number of weights that are averaged at a time, so that their sums stay in the cache."""


@dataclass(frozen=True)
class Admitted:
    """An update that passed the guard."""

    weights: Weights
    num_examples: int
    train_loss: float
    message: Any = None
    """The message that carried it, where it was received over a network."""


@dataclass(frozen=True, kw_only=True)
class Aggregation(Section, ABC):
    """(t, memory, w_t, updates) -> (memory, w_(t+1)).

    The updates are ordered by client id, so that the sum does not depend on the order of the replies. A client that
    was selected twice is listed twice.
    """

    uses_V: ClassVar[bool] = False
    """Whether the aggregation needs the server's filtering set V."""

    def on(self, server: "ServerSide") -> "Aggregation":
        """This aggregation on the server of a run. Only those that use more than the updates need it."""
        return self

    @abstractmethod
    def __call__(self, t: int, memory: Memory, w_t: Weights, updates: Sequence[Admitted]) -> tuple[Memory, Weights]: ...


def weighted_mean(updates: Sequence[Admitted], shares: Sequence[float], w_t: Weights) -> Weights:
    """sum_k share_k w_k, summed in float64, in the dtype of w_t. Integer buffers are those of the first client."""
    first = updates[0].weights
    mean = torch.empty_like(first.vector, dtype=w_t.vector.dtype)
    for start in range(0, len(mean), PIECE):
        here = slice(start, start + PIECE)
        total = torch.zeros_like(mean[here], dtype=torch.float64)
        for update, share in zip(updates, shares, strict=True):
            total.add_(update.weights.vector[here], alpha=share)
        torch.div(total, sum(shares), out=mean[here])
    return Weights(mean, first.integers)
