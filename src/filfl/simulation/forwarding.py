"""Clients that stand in front of others."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from filfl.clients import Failure, Learners, Split
from filfl.selection.base import AnyIds
from filfl.weights import Weights


class Forwarding:
    """Hands on every question but the one about training, which is for the class that stands in front to answer."""

    def __init__(self, clients: Learners) -> None:
        self._clients = clients

    def losses(self, ids: Sequence[int], weights: Weights, split: Split) -> dict[int, float | Failure]:
        return self._clients.losses(ids, weights, split)

    def gradients(self, ids: Sequence[int], weights: Weights) -> dict[int, Tensor | Failure]:
        return self._clients.gradients(ids, weights)

    def num_examples(self, ids: AnyIds) -> NDArray[np.int64]:
        return self._clients.num_examples(ids)
