"""What the server says to the clients in one round, and what it makes of the answers."""

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from filfl.aggregation import Admitted, guard, guard_logits
from filfl.availability.base import among
from filfl.clients import Failure, Metered, Rehearsed, Sheet
from filfl.clock import Stopwatch
from filfl.errors import PluginError, one_line
from filfl.filtering.when import NOBODY
from filfl.rng import stream
from filfl.selection.base import AnyIds
from filfl.server import FilFL, Handed, State
from filfl.weights import Weights

SHOWN = 50
"""Clients that an error lists by their ids."""


def whole_numbers(who: str, ids: Any) -> list[int]:
    """The ids that a user's own part answered with, as plain integers."""
    try:
        return [operator.index(k) for k in ids]
    except TypeError:
        raise PluginError(f"the {who} must answer with a list of client ids (got {ids!r})") from None


class Conversation:
    """The server's side of one round's messages: what was answered, who was refused, what it cost."""

    def __init__(self, t: int, state: State, fl: FilFL, clock: Stopwatch) -> None:
        self.door = Metered(fl.clients, fl.layout)
        self.refused: dict[int, str] = {}
        self.latest = dict(state.latest)
        self.handed = state.handed
        self.checks = 0
        """Uploads that were run on V."""
        self.liars: set[int] = set()
        """Who uploaded something else than it claimed: what a filter made of its claim was not so."""
        self._claims: dict[int, Rehearsed] = {}
        self._sheet: Sheet | None = None
        self._t, self._w_t, self._fl, self._clock = t, state.w, fl, clock

    def train(self, ids: Sequence[int]) -> dict[int, Admitted]:
        """Broadcast w_t, let the clients train in parallel, and take what they send back past the guard."""
        with self._clock("train"):
            answers = self.door.train(ids, self._w_t, self._fl.job(self._t)) if ids else {}
            admitted, refused = guard(answers, self._fl.layout, self._w_t.vector.device)
        self.refused |= refused
        return self._remembered(admitted)

    def rehearse(self, ids: Sequence[int]) -> dict[int, Tensor]:
        """Broadcast w_t, let the clients train in parallel and keep what they come to: what that says to V."""
        by = self._fl.logits
        assert by is not None
        with self._clock("train"):
            self._sheet = sheet = by.sheet(self._fl.seed, self._t, ids, self.handed)
            answers = self.door.rehearse(ids, self._w_t, self._fl.job(self._t), sheet)
            heard, refused = guard_logits(answers, sheet, self._w_t.vector.device)
        self._claims = {k: answer for k, answer in answers.items() if k in heard and isinstance(answer, Rehearsed)}
        self.refused |= refused
        # Who answered has V, whatever it answered.
        has = [k for k, answer in answers.items() if not isinstance(answer, Failure)]
        before = self.handed.to if self.handed.digest == by.digest else NOBODY
        self.handed = Handed(by.digest, np.union1d(before, np.array(has, dtype=np.int64)))
        if self._fl.selection.remembers == "predictions":
            self.latest = {k: z.flatten() for k, z in heard.items()}
        return heard

    def rows(self) -> Tensor | None:
        """The samples of V that this round goes by; None is all of them."""
        return self._sheet.rows if self._sheet else None

    def cast(self, ids: AnyIds, w: dict[int, Admitted]) -> tuple[list[int], set[int]]:
        """A_t out of these clients; and who failed to send the weights that it kept, each of whom is replaced by the
        next choice for as long as there is one. What they send is added to `w`, and nobody in it is asked again."""
        again = self._fl.selection.with_replacement
        left, missing, tries = [int(k) for k in ids], self._fl.K, 0
        A_t: list[int] = []
        failed: set[int] = set()
        while left and missing:
            chosen = self.select(left, missing, tries)
            w |= self._upload(sorted(set(chosen) - w.keys()))
            A_t += [k for k in chosen if k in w]
            failed |= set(chosen) - w.keys()
            left = [k for k in left if k not in failed and (again or k not in A_t)]
            missing, tries = sum(k in failed for k in chosen), tries + 1
        return sorted(A_t), failed

    def _upload(self, ids: Sequence[int]) -> dict[int, Admitted]:
        """The weights that these clients kept, of those who told the truth about them."""
        by, sheet = self._fl.logits, self._sheet
        assert by is not None and sheet is not None
        with self._clock("upload"):
            answers = self.door.upload(ids, self._t) if ids else {}
            admitted, refused = guard(answers, self._fl.layout, self._w_t.vector.device)
            outputs = by.says([update.weights for update in admitted.values()], sheet.samples)
            for (k, update), says in zip(admitted.items(), outputs, strict=True):
                claim = self._claims[k]
                if isinstance(says, Failure):
                    refused[k] = one_line(says.reason)
                elif update.num_examples != claim.num_examples:
                    refused[k] = f"it said {claim.num_examples} examples, and now {update.num_examples}"
                elif lie := by.lie(claim.logits, says, sheet):
                    refused[k] = lie
        self.checks += len(admitted)
        self.refused |= refused
        self.liars |= {k for k in refused if not isinstance(answers[k], Failure)}
        return self._remembered({k: update for k, update in admitted.items() if k not in refused})

    def _remembered(self, admitted: dict[int, Admitted]) -> dict[int, Admitted]:
        if self._fl.selection.remembers == "updates":
            self.latest |= {k: update.weights.vector - self._w_t.vector for k, update in admitted.items()}
        return admitted

    def select(self, ids: AnyIds, k: int | None = None, tries: int = 0) -> list[int]:
        """At most k (unset: K) of these clients, given in ascending order. Of k or fewer nobody has to be chosen
        (Remark 3). `tries`: how often it was chosen in vain in this round."""
        most = self._fl.K if k is None else k
        pool = np.asarray(ids, dtype=np.int64).view()
        pool.flags.writeable = False  # it may be S_t itself
        again = self._fl.selection.with_replacement
        if not len(pool) or (len(pool) <= most and not again):
            return [int(k) for k in pool]
        with self._clock("select"):
            rng = stream(self._fl.seed, self._t, f"selection-{tries}" if tries else "selection")
            chosen = whole_numbers("selection", self._fl.selection(pool, most, self, rng))
        if len(chosen) > most or not among(chosen, pool).all():
            of = pool.tolist() if len(pool) <= SHOWN else f"the {len(pool)} clients of the pool"
            raise PluginError(f"the selection must choose at most {most} of {of} (got {chosen})")
        if len(set(chosen)) < len(chosen) and not again:
            raise PluginError(
                f"the selection chose a client twice ({chosen}); "
                "set its attribute with_replacement = True if that is meant"
            )
        return sorted(chosen)

    # What a selection may ask (filfl.selection.Ask), always at w_t.

    def losses(self, ids: AnyIds) -> dict[int, float]:
        return self._answered(self.door.losses(whole_numbers("selection", ids), self._w_t, "validation"))

    def losses_of(self, ids: Sequence[int], vector: Tensor, split: str) -> dict[int, float]:
        """The loss of other weights than w_t, for a judge of filterings."""
        weights = Weights(vector, self._w_t.integers)
        return self._answered(self.door.losses(ids, weights, "train" if split == "train" else "validation"))

    def gradients(self, ids: AnyIds) -> dict[int, Tensor]:
        answers = self._answered(self.door.gradients(whole_numbers("selection", ids), self._w_t))
        shape = (self._fl.layout.num_trained,)
        broken = {}
        for k, gradient in answers.items():
            if tuple(gradient.shape) != shape:
                broken[k] = f"its gradient has shape {tuple(gradient.shape)} instead of {shape}"
            elif not gradient.isfinite().all():
                broken[k] = "its gradient has a value that is not finite"
        self.refused |= broken
        return {k: gradient for k, gradient in answers.items() if k not in broken}

    def updates(self, ids: AnyIds) -> dict[int, Tensor]:
        nothing = torch.zeros_like(self._w_t.vector)
        return {k: self.latest.get(k, nothing) for k in whole_numbers("selection", ids)}

    def predictions(self, ids: AnyIds) -> dict[int, Tensor]:
        nothing = torch.zeros_like(next(iter(self.latest.values()), self._w_t.vector[:1]))
        return {k: self.latest.get(k, nothing) for k in whole_numbers("selection", ids)}

    def num_examples(self, ids: AnyIds) -> NDArray[np.int64]:
        return self.door.num_examples(ids)

    def _answered(self, answers: Mapping[int, Any]) -> dict[int, Any]:
        self.refused |= {k: answer.reason for k, answer in answers.items() if isinstance(answer, Failure)}
        return {k: answer for k, answer in answers.items() if not isinstance(answer, Failure)}
