"""The bytes of a round's messages."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from filfl.core.clients import Clients, Failure, Update
from filfl.core.queries import Query
from filfl.logits.encoding import Encoding
from filfl.logits.messages import LogitReply, LogitRequest
from filfl.selection.base import AnyIds
from filfl.weights import Layout, Weights

Reply = TypeVar("Reply")

SCALARS = 16
"""Bytes beside the weights in the reply of a client that trained: its number of examples and its train loss."""
ROW = 4
"""Bytes of the index of a sample of V."""


def update_bytes(layout: Layout) -> int:
    """Size of the reply of a client that sends its trained weights."""
    return layout.num_bytes + SCALARS


def logit_reply_bytes(encoding: Encoding, shape: tuple[int, ...]) -> int:
    """Size of the reply of a client that sends logits; `shape` is their shape before they are encoded."""
    return encoding.num_bytes(shape) + SCALARS


class MeteredClients:
    """Clients, and the bytes that a real federation would transfer for one round.

    Each message counts by itself: a client that is asked for its loss and then to train receives the model twice.
    Payloads count, the transport's own overhead does not. A client that fails to reply still received the model.
    """

    def __init__(self, clients: Clients, layout: Layout) -> None:
        self._clients = clients
        self._layout = layout
        self.uplink = 0
        self.downlink = 0

    def train(self, t: int, ids: Sequence[int], weights: Weights) -> dict[int, Update | Failure]:
        return self._count(ids, self._clients.train(t, ids, weights), update_bytes(self._layout))

    def query(self, query: Query, ids: Sequence[int], weights: Weights) -> dict[int, Any]:
        return self._count(ids, self._clients.query(query, ids, weights), query.num_bytes(self._layout))

    def num_examples(self, ids: AnyIds) -> NDArray[np.int64]:
        """Free: clients report it once, when they register."""
        return self._clients.num_examples(ids)

    def train_for_logits(
        self, t: int, ids: Sequence[int], weights: Weights, request: LogitRequest
    ) -> dict[int, LogitReply | Failure]:
        replies = self._clients.train_for_logits(t, ids, weights, request)
        resent = [k for k, reply in replies.items() if isinstance(reply, LogitReply | Failure) and reply.resent]
        sent_to = [*ids, *resent]
        self.downlink += (len(request.new_recipients.intersection(ids)) + len(resent)) * request.V.num_bytes
        self.downlink += len(sent_to) * (0 if request.rows is None else ROW * len(request.rows))
        return self._count(sent_to, replies, logit_reply_bytes(request.encoding, request.shape))

    def upload(self, t: int, ids: Sequence[int]) -> dict[int, Update | Failure]:
        """The request itself has no payload."""
        return self._count((), self._clients.upload(t, ids), update_bytes(self._layout))

    def _count(self, sent_to: Sequence[int], replies: dict[int, Reply], size: int) -> dict[int, Reply]:
        self.downlink += len(sent_to) * self._layout.num_bytes
        self.uplink += _received(replies, size)
        return replies


def _received(replies: Mapping[int, object], size: int) -> int:
    return sum(reply.num_bytes if isinstance(reply, Failure) else size for reply in replies.values())
