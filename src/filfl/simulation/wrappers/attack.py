"""Clients of which some send other weights than they trained."""

from collections.abc import Sequence
from dataclasses import replace

from filfl.attacks import Attack
from filfl.availability.base import Ids
from filfl.core.clients import Failure, TrainingClients, Update
from filfl.simulation.wrappers.forwarding import Forwarding
from filfl.weights import Layout, Weights


class AttackingClients(Forwarding):
    """Attacking clients train and apply the attack to the weights that they send. Their other replies are not changed.

    The attack changes the weights that SGD trains. BatchNorm statistics are sent as they are: with a negative variance
    a model computes nothing at all, which would give the attack away.
    """

    def __init__(self, clients: TrainingClients, layout: Layout, attack: Attack, bad: Ids) -> None:
        super().__init__(clients)
        self._layout = layout
        self._attack = attack
        self._bad = frozenset(bad.tolist())

    def train(self, t: int, ids: Sequence[int], weights: Weights) -> dict[int, Update | Failure]:
        replies = self._clients.train(t, ids, weights)
        return {k: self._attacked(reply, weights) if k in self._bad else reply for k, reply in replies.items()}

    def _attacked(self, reply: Update | Failure, w_t: Weights) -> Update | Failure:
        if isinstance(reply, Failure):
            return reply
        assert isinstance(reply.weights, Weights)
        trained = slice(self._layout.num_trained)
        # A copy: the executor's row may be in shared memory.
        vector = reply.weights.vector.clone()
        vector[trained] = self._attack.sent(reply.weights.vector[trained], w_t.vector[trained])
        return replace(reply, weights=Weights(vector, reply.weights.integers))
