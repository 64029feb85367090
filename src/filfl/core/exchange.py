"""The messages of one round: sent through the meter, guarded on the way back."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from filfl.aggregation.base import Admitted
from filfl.core.clients import Clients, Failure
from filfl.core.guard import Guard, RoundGuard
from filfl.core.metering import MeteredClients
from filfl.core.queries import Query
from filfl.logits.messages import LogitReply, LogitRequest
from filfl.selection.base import AnyIds
from filfl.system import Stopwatch
from filfl.weights import Layout, Weights


class Exchange:
    """Sends the messages of round t, guards the replies, and records who was refused and why."""

    def __init__(
        self, t: int, w_t: Weights, clients: Clients, layout: Layout, clock: Stopwatch, guard: Guard | None = None
    ) -> None:
        self.t, self.w_t, self.layout, self.clock = t, w_t, layout, clock
        self.refused: dict[int, str] = {}
        self._guard = RoundGuard(guard or Guard(), layout, w_t)
        self._clients = MeteredClients(clients, layout)

    @property
    def notes(self) -> list[str]:
        """What the guard left out of replies that it admitted."""
        return self._guard.notes

    @property
    def uplink(self) -> int:
        """Bytes from the clients so far."""
        return self._clients.uplink

    @property
    def downlink(self) -> int:
        """Bytes to the clients so far."""
        return self._clients.downlink

    def train(self, ids: Sequence[int]) -> dict[int, Admitted]:
        """Send w_t, let the clients train in parallel, and receive their updates."""
        with self.clock("train"):
            replies = self._clients.train(self.t, ids, self.w_t) if ids else {}
            admitted, refused = self._guard.updates(replies)
        self.refused |= refused
        return admitted

    def train_for_logits(
        self, ids: Sequence[int], request: LogitRequest
    ) -> tuple[dict[int, LogitReply], dict[int, Tensor], list[int]]:
        """Send w_t, let the clients train in parallel and keep their weights, and receive their logits on V.

        Returns the replies that passed the guard, their decoded logits, and all clients that replied.
        """
        with self.clock("train"):
            replies = self._clients.train_for_logits(self.t, ids, self.w_t, request)
            logits, refused = self._guard.logits(replies, request)
        self.refused |= refused
        replied = {k: reply for k, reply in replies.items() if not isinstance(reply, Failure)}
        return {k: reply for k, reply in replied.items() if k in logits}, logits, list(replied)

    def upload(self, ids: Sequence[int]) -> tuple[dict[int, Admitted], set[int]]:
        """The weights that these clients kept in this round; and the clients that did not reply."""
        replies = self._clients.upload(self.t, ids) if ids else {}
        admitted, refused = self._guard.updates(replies)
        self.refused |= refused
        return admitted, {k for k, reply in replies.items() if isinstance(reply, Failure)}

    def query(self, query: Query, ids: Sequence[int], weights: Weights | None = None) -> dict[int, Any]:
        """The clients' replies to a query at `weights` (unset: w_t), of those that reply."""
        replies = self._clients.query(query, ids, self.w_t if weights is None else weights)
        usable, refused = self._guard.answers(replies, query)
        self.refused |= refused
        return usable

    def num_examples(self, ids: AnyIds) -> NDArray[np.int64]:
        """The number of examples that each client registered with; 0 if it is unknown or not credible."""
        sizes, refused = self._guard.sizes(ids, self._clients.num_examples(ids))
        self.refused |= refused
        return sizes

    def refuse(self, k: int, reason: str) -> None:
        """Record a refusal that is decided after the guard."""
        self.refused[k] = reason
