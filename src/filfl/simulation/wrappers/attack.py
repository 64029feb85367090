"""Clients of which some send other weights than they trained."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor

from filfl.aggregation import Admitted, Aggregation
from filfl.aggregation.mean import Mean
from filfl.attacks import Attack
from filfl.attacks.base import Colluders, Collusion
from filfl.availability.base import Ids
from filfl.core.clients import Failure, TrainingClients, Update
from filfl.rng import stream
from filfl.simulation.wrappers.forwarding import Forwarding
from filfl.weights import Layout, Weights

Known = TypeVar("Known")


@dataclass(frozen=True)
class Knowledge:
    """What attackers know of the server."""

    aggregation: Aggregation
    loss_on_V: Callable[[Weights], float] | None = None
    gradient_on_V: Callable[[Weights], Tensor] | None = None
    """weights -> the loss on the filtering set, and its gradient; None if there is no such set."""


KNOWS_THE_MEAN = Knowledge(Mean())


class AttackingClients(Forwarding):
    """Attacking clients train and apply the attack to the weights that they send. Their other replies are not changed.

    The attack changes the weights that SGD trains. BatchNorm statistics are sent as they are: with a negative variance
    a model computes nothing at all, which would give the attack away.
    """

    def __init__(
        self,
        clients: TrainingClients,
        layout: Layout,
        attack: Attack,
        bad: Ids,
        seed: int = 0,
        knowledge: Knowledge = KNOWS_THE_MEAN,
    ) -> None:
        super().__init__(clients)
        self._seed = seed
        self._knowledge = knowledge
        self._layout = layout
        self._attack = attack
        self._bad = frozenset(bad.tolist())

    def train(self, t: int, ids: Sequence[int], weights: Weights) -> dict[int, Update | Failure]:
        replies = self._clients.train(t, ids, weights)
        attackers = {k: reply for k, reply in sorted(replies.items()) if k in self._bad and isinstance(reply, Update)}
        if isinstance(self._attack, Collusion) and attackers:
            return {**replies, **self._together(self._attack, t, len(ids), attackers, weights)}
        here = slice(self._layout.num_trained)
        w_t = weights.vector[here]
        sent = {k: self._attack.sent(_vector(reply)[here], w_t) for k, reply in attackers.items()}
        return {**replies, **{k: self._with(reply, sent[k]) for k, reply in attackers.items()}}

    def _together(
        self, attack: Collusion, t: int, n: int, attackers: Mapping[int, Update], weights: Weights
    ) -> dict[int, Update | Failure]:
        here = slice(self._layout.num_trained)
        w_t = weights.vector[here]
        updates = torch.stack([_vector(reply)[here] for reply in attackers.values()]) - w_t
        rng, knowledge = stream(self._seed, t, "collusion"), self._knowledge

        def rule(stack: Tensor) -> Tensor:
            given = [Admitted(_moved(weights, update), 1, 0.0) for update in stack]
            return knowledge.aggregation(t, {}, weights, given)[1].vector[here] - w_t

        def after(of: Callable[[Weights], Known]) -> Callable[[Tensor], Known]:
            return lambda update: of(_moved(weights, update))

        loss, gradient = knowledge.loss_on_V, knowledge.gradient_on_V
        known = Colluders(updates, n, rng, rule, loss and after(loss), gradient and after(gradient))
        sent = attack.sent_together(known).expand_as(updates)
        return {k: self._with(reply, w_t + update) for (k, reply), update in zip(attackers.items(), sent, strict=True)}

    def _with(self, reply: Update, trained: Tensor) -> Update:
        """The reply with other trained weights."""
        assert isinstance(reply.weights, Weights)
        vector = reply.weights.vector.clone()  # the executor's row may be in shared memory
        vector[: self._layout.num_trained] = trained
        return replace(reply, weights=Weights(vector, reply.weights.integers))


def _moved(weights: Weights, update: Tensor) -> Weights:
    """The weights after an update of the trained ones."""
    vector = weights.vector.clone()
    vector[: len(update)] += update
    return Weights(vector, weights.integers)


def _vector(reply: Update) -> Tensor:
    assert isinstance(reply.weights, Weights)
    return reply.weights.vector
