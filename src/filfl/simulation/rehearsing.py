"""Clients that keep what they trained to until they are asked for it."""

from collections.abc import Callable, Sequence

from torch import Tensor

from filfl.clients import Failure, Job, Learners, Rehearsed, Sheet, Update
from filfl.evaluation import Samples
from filfl.simulation.forwarding import Forwarding
from filfl.weights import Weights


class RehearsingClients(Forwarding):
    """The whole `Clients` door in front of any executor: its clients train as always, what they trained to stays on
    this side, and only what it says to V goes through.

    It stands before the attack, so that a bad client's logits are those of the weights that it would send: who claimed
    anything else would be found out. And before the spill: what is kept counts as trained weights do.
    """

    def __init__(self, clients: Learners, says: Callable[[Sequence[Weights], Samples], list[Tensor | Failure]]) -> None:
        """`says` runs models on samples, as `ByLogits.says` does."""
        super().__init__(clients)
        self._says = says
        self._round = 0
        self._kept: dict[int, Update] = {}

    def train(self, ids: Sequence[int], weights: Weights, job: Job) -> dict[int, Update | Failure]:
        self._kept.clear()
        return self._clients.train(ids, weights, job)

    def rehearse(self, ids: Sequence[int], weights: Weights, job: Job, sheet: Sheet) -> dict[int, Rehearsed | Failure]:
        self._kept.clear()  # before training: an executor may use the memory again
        answers = self._clients.train(ids, weights, job)
        self._kept = {k: answer for k, answer in answers.items() if isinstance(answer, Update)}
        self._round = job.round
        outputs = dict(zip(self._kept, self._says(list(map(_state, self._kept.values())), sheet.samples), strict=True))

        def told(k: int, answer: Update | Failure) -> Rehearsed | Failure:
            if isinstance(answer, Failure):
                return answer
            says = outputs[k]
            if isinstance(says, Failure):
                return says
            return Rehearsed(sheet.form.pack(says), answer.num_examples, answer.train_loss)

        return {k: told(k, answer) for k, answer in answers.items()}

    def upload(self, ids: Sequence[int], round: int) -> dict[int, Update | Failure]:
        kept = self._kept if round == self._round else {}
        return {k: kept.get(k, Failure(f"it keeps no weights of round {round}")) for k in ids}


def _state(update: Update) -> Weights:
    assert isinstance(update.weights, Weights)
    return update.weights
