"""What the server says to the clients in one round, and what it makes of the answers."""

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from filfl.aggregation import Admitted, guard
from filfl.availability.base import among
from filfl.clients import Failure, Metered
from filfl.clock import Stopwatch
from filfl.errors import PluginError
from filfl.rng import stream
from filfl.selection.base import AnyIds
from filfl.server import FilFL, State
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
        self._t, self._w_t, self._fl, self._clock = t, state.w, fl, clock

    def train(self, ids: Sequence[int]) -> dict[int, Admitted]:
        """Broadcast w_t, let the clients train in parallel, and take what they send back past the guard."""
        with self._clock("train"):
            answers = self.door.train(ids, self._w_t, self._fl.job(self._t)) if ids else {}
            admitted, refused = guard(answers, self._fl.layout, self._w_t.vector.device)
        self.refused |= refused
        if getattr(self._fl.selection, "wants_updates", False):
            self.latest |= {k: update.weights.vector - self._w_t.vector for k, update in admitted.items()}
        return admitted

    def select(self, ids: AnyIds) -> list[int]:
        """At most K of these clients, given in ascending order. Of K or fewer nobody has to be chosen (Remark 3)."""
        pool = np.asarray(ids, dtype=np.int64).view()
        pool.flags.writeable = False  # it may be S_t itself
        again = getattr(self._fl.selection, "with_replacement", False)
        if not len(pool) or (len(pool) <= self._fl.K and not again):
            return [int(k) for k in pool]
        with self._clock("select"):
            rng = stream(self._fl.seed, self._t, "selection")
            chosen = whole_numbers("selection", self._fl.selection(pool, self._fl.K, self, rng))
        if len(chosen) > self._fl.K or not among(chosen, pool).all():
            of = pool.tolist() if len(pool) <= SHOWN else f"the {len(pool)} clients of the pool"
            raise PluginError(f"the selection must choose at most {self._fl.K} of {of} (got {chosen})")
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

    def num_examples(self, ids: AnyIds) -> NDArray[np.int64]:
        return self.door.num_examples(ids)

    def _answered(self, answers: Mapping[int, Any]) -> dict[int, Any]:
        self.refused |= {k: answer.reason for k, answer in answers.items() if isinstance(answer, Failure)}
        return {k: answer for k, answer in answers.items() if not isinstance(answer, Failure)}
