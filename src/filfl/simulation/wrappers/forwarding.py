"""The base class of wrappers around clients."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from filfl.core.clients import Failure, Split, TrainingClients
from filfl.selection.base import AnyIds
from filfl.weights import Weights


class Forwarding:
    """Forwards everything but training, which a wrapper implements itself."""

    def __init__(self, clients: TrainingClients) -> None:
        self._clients = clients

    @property
    def num_clients(self) -> int:
        return self._clients.num_clients

    def losses(self, ids: Sequence[int], weights: Weights, split: Split) -> dict[int, float | Failure]:
        return self._clients.losses(ids, weights, split)

    def gradients(self, ids: Sequence[int], weights: Weights) -> dict[int, Tensor | Failure]:
        return self._clients.gradients(ids, weights)

    def num_examples(self, ids: AnyIds) -> NDArray[np.int64]:
        return self._clients.num_examples(ids)
