"""Clients that keep their trained weights until the server asks for them."""

from collections.abc import Sequence
from typing import Any

from filfl.core.clients import Failure, TrainingClients, Update
from filfl.filtering.filtering_set import FilteringSet
from filfl.logits.messages import LogitReply, LogitRequest
from filfl.simulation.wrappers.forwarding import Forwarding
from filfl.weights import Weights


class LogitCache(Forwarding):
    """The whole `Clients` protocol around any executor: clients train as always, their weights stay in this cache, and
    the server receives their logits on V.

    It wraps the attack, so that a bad client's logits are those of the weights that it would send: any other claim
    would be found out. It wraps the spilling too, so that kept weights count as trained weights.
    """

    def __init__(self, clients: TrainingClients, V: FilteringSet) -> None:
        """`V` has the networks that compute the logits; the samples are those of the request."""
        super().__init__(clients)
        self._V = V
        self._round = 0
        self._kept: dict[int, Update] = {}

    def train(self, t: int, ids: Sequence[int], weights: Weights) -> dict[int, Update | Failure]:
        self._kept.clear()
        return self._clients.train(t, ids, weights)

    def train_for_logits(
        self, t: int, ids: Sequence[int], weights: Weights, request: LogitRequest
    ) -> dict[int, LogitReply | Failure]:
        self._kept.clear()  # before training: an executor may reuse the memory
        replies: dict[int, Any] = {**self._clients.train(t, ids, weights)}
        self._kept = {k: reply for k, reply in replies.items() if isinstance(reply, Update)}
        self._round = t
        kept = [update.weights for update in self._kept.values() if isinstance(update.weights, Weights)]
        outputs = self._V.outputs_or_failures(kept, request.samples)
        for (k, update), z in zip(self._kept.items(), outputs, strict=True):
            trained = (update.num_examples, update.train_loss)
            replies[k] = z if isinstance(z, Failure) else LogitReply(request.encoding.encode(z), *trained)
        return replies

    def upload(self, t: int, ids: Sequence[int]) -> dict[int, Update | Failure]:
        kept = self._kept if t == self._round else {}
        return {k: kept.get(k, Failure(f"the client has no weights of round {t}")) for k in ids}

    def take_notes(self) -> list[str]:
        """None: what happens on this machine concerns single clients only."""
        return []
