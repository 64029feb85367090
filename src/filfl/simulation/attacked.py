"""Clients of whom some send other weights than they trained."""

from collections.abc import Sequence
from dataclasses import replace

from filfl.attacks import Attack
from filfl.availability.base import Ids
from filfl.clients import Failure, Job, Learners, Update
from filfl.simulation.forwarding import Forwarding
from filfl.weights import Layout, Weights


class AttackedClients(Forwarding):
    """Learners with an attack in front of them: bad clients train, lie about what they trained to, and answer every
    other question honestly.

    They lie about the weights that SGD trains. BatchNorm statistics are sent as they are: with a negative variance a
    model computes nothing at all, and an attack wants to be averaged.
    """

    def __init__(self, clients: Learners, layout: Layout, attack: Attack, bad: Ids) -> None:
        super().__init__(clients)
        self._layout = layout
        self._attack = attack
        self._bad = frozenset(bad.tolist())

    def train(self, ids: Sequence[int], weights: Weights, job: Job) -> dict[int, Update | Failure]:
        answers = self._clients.train(ids, weights, job)
        return {k: self._sent(answer, weights) if k in self._bad else answer for k, answer in answers.items()}

    def _sent(self, answer: Update | Failure, w_t: Weights) -> Update | Failure:
        if isinstance(answer, Failure):
            return answer
        assert isinstance(answer.weights, Weights)
        trained = slice(self._layout.num_trained)
        # A vector of its own: the executor's row may lie in memory that others can see.
        vector = answer.weights.vector.clone()
        vector[trained] = self._attack.sent(answer.weights.vector[trained], w_t.vector[trained])
        return replace(answer, weights=Weights(vector, answer.weights.integers))
