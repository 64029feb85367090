"""The protocol between the server and the clients: what the server can ask for, and the replies.

The simulator implements it on one machine and `filfl.flower` over a network; Algorithm 1 does not see the difference.
A client that cannot answer is a `Failure` in the replies, never an exception.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from filfl.core.queries import Query
from filfl.logits.messages import LogitReply, LogitRequest
from filfl.selection.base import AnyIds
from filfl.weights import Weights


@dataclass(frozen=True)
class Update:
    """The reply of a client that trained. The weights may be a plain state dict, as received over a network."""

    weights: Weights | Mapping[str, Any]
    num_examples: int
    train_loss: float
    message: Any = None
    """The message that carried the update, for an aggregation that needs more of it than the weights."""


TIMEOUT, DISCONNECTED = "timeout: ", "disconnected: "
"""How the reason of a failure begins where a client has not replied at all."""


@dataclass(frozen=True)
class Failure:
    """A client that did not reply as asked, and why."""

    reason: str
    num_bytes: int = 0
    """The size of its reply in bytes, if it sent one."""
    resent: bool = False
    """As in `LogitReply`."""


@dataclass(frozen=True)
class Evaluated:
    """The reply of a client that tested the global model on its own data."""

    num_examples: int
    metrics: Mapping[str, float]
    message: Any = None


class TrainingClients(Protocol):
    """Clients that train and answer questions about their data: what an executor of the simulator implements."""

    @property
    def num_clients(self) -> int:
        """The number of registered clients; their ids are 0 to num_clients - 1."""
        ...

    def train(self, t: int, ids: Sequence[int], weights: Weights) -> dict[int, Update | Failure]:
        """Each client trains from `weights` on its own data, in round t."""
        ...

    def query(self, query: Query, ids: Sequence[int], weights: Weights) -> dict[int, Any]:
        """Each client's reply to a query about its own data at `weights`, or its `Failure`."""
        ...

    def num_examples(self, ids: AnyIds) -> NDArray[np.int64]:
        """The number of training examples that each client registered with, in the order of the ids."""
        ...


class Clients(TrainingClients, Protocol):
    """Everything that the server can ask of clients."""

    def train_for_logits(
        self, t: int, ids: Sequence[int], weights: Weights, request: LogitRequest
    ) -> dict[int, LogitReply | Failure]:
        """Each client trains from `weights` in round t, keeps the result, and replies with its logits on V."""
        ...

    def upload(self, t: int, ids: Sequence[int]) -> dict[int, Update | Failure]:
        """The weights that these clients kept in round t. Every client drops them at the end of the round."""
        ...

    def take_notes(self) -> list[str]:
        """Events since the last call that concern no single client, for the record of the round."""
        ...
