"""The base class of wrappers around clients."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from filfl.core.clients import TrainingClients
from filfl.core.queries import Query
from filfl.selection.base import AnyIds
from filfl.weights import Weights


class Forwarding:
    """Forwards everything but training, which a wrapper implements itself."""

    def __init__(self, clients: TrainingClients) -> None:
        self._clients = clients

    @property
    def num_clients(self) -> int:
        return self._clients.num_clients

    def query(self, query: Query, ids: Sequence[int], weights: Weights) -> dict[int, Any]:
        return self._clients.query(query, ids, weights)

    def num_examples(self, ids: AnyIds) -> NDArray[np.int64]:
        return self._clients.num_examples(ids)
