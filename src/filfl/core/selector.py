"""Line 11 of Algorithm 1 and line 17 of Algorithm 2: the selection of A_t, and what it may ask about clients."""

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from filfl.aggregation.base import Admitted
from filfl.availability.base import among
from filfl.core.exchange import Exchange
from filfl.core.queries import GradientQuery, LossQuery
from filfl.errors import PluginError
from filfl.rng import stream
from filfl.selection.base import AnyIds, Selection
from filfl.weights import Weights

Latest = Mapping[int, Tensor]
"""One vector per client: its latest update, or its latest logits on V."""
MAX_LISTED = 50
"""The largest number of client ids in an error message."""


def whole_numbers(plugin: str, ids: Any) -> list[int]:
    """The ids that a user's plug-in returned, as plain integers."""
    try:
        return [operator.index(k) for k in ids]
    except TypeError:
        raise PluginError(f"the {plugin} must return a list of client ids (got {ids!r})") from None


class Questions:
    """What a selection may ask about clients (`filfl.selection.Ask`), always at the current global model w_t."""

    def __init__(self, exchange: Exchange, latest: Latest) -> None:
        self.__exchange, self.__latest = exchange, latest

    def losses(self, ids: AnyIds) -> dict[int, float]:
        return self.__exchange.query(LossQuery("validation"), whole_numbers("selection", ids))

    def gradients(self, ids: AnyIds) -> dict[int, Tensor]:
        return self.__exchange.query(GradientQuery(), whole_numbers("selection", ids))

    def updates(self, ids: AnyIds) -> dict[int, Tensor]:
        return self._latest_or(torch.zeros_like(self.__exchange.w_t.vector), ids)

    def predictions(self, ids: AnyIds) -> dict[int, Tensor]:
        known = next(iter(self.__latest.values()), self.__exchange.w_t.vector[:1])
        return self._latest_or(torch.zeros_like(known), ids)

    def num_examples(self, ids: AnyIds) -> NDArray[np.int64]:
        return self.__exchange.num_examples(ids)

    def _latest_or(self, zero: Tensor, ids: AnyIds) -> dict[int, Tensor]:
        return {k: self.__latest.get(k, zero) for k in whole_numbers("selection", ids)}


@dataclass(frozen=True)
class Selector:
    """Selects at most K clients of a pool by a selection plug-in, and checks its answer."""

    seed: int
    selection: Selection

    @property
    def K(self) -> int:
        return self.selection.k

    @property
    def with_replacement(self) -> bool:
        return self.selection.with_replacement

    def __call__(
        self,
        pool: AnyIds,
        exchange: Exchange,
        latest: Latest,
        previous: Sequence[int],
        k: int | None = None,
        attempt: int = 0,
    ) -> list[int]:
        """At most k (unset: K) of the pool, which is in ascending order. A pool of k or fewer is selected as a whole
        (Remark 3). `previous` is A_(t-1). `attempt` is the number of earlier selections in this round after which a
        client failed."""
        most = self.K if k is None else k
        ids = np.asarray(pool, dtype=np.int64).view()
        ids.flags.writeable = False  # it may be S_t itself
        if not len(ids) or (len(ids) <= most and not self.with_replacement):
            return [int(i) for i in ids]
        if exchange.t % self.selection.every and previous and not attempt and among(previous, ids).all():
            return list(previous)
        with exchange.clock("select"):
            rng = stream(self.seed, exchange.t, f"selection-{attempt}" if attempt else "selection")
            selected = whole_numbers("selection", self.selection(ids, most, Questions(exchange, latest), rng))
        if len(selected) > most or not among(selected, ids).all():
            listed = ids.tolist() if len(ids) <= MAX_LISTED else f"the {len(ids)} clients of the pool"
            raise PluginError(f"the selection must return at most {most} of {listed} (got {selected})")
        if len(set(selected)) < len(selected) and not self.with_replacement:
            raise PluginError(
                f"the selection returned a client twice ({selected}); "
                "set its attribute with_replacement = True if that is intended"
            )
        return sorted(selected)

    def after_updates(self, latest: Latest, updates: Mapping[int, Admitted], w_t: Weights) -> Latest:
        """The vectors that the selection remembers, after these updates."""
        if self.selection.remembers != "updates":
            return latest
        return {**latest, **{k: update.weights.vector - w_t.vector for k, update in updates.items()}}

    def after_logits(self, latest: Latest, logits: Mapping[int, Tensor]) -> Latest:
        """The vectors that the selection remembers, after a filtering by logits."""
        return {k: z.flatten() for k, z in logits.items()} if self.selection.remembers == "predictions" else latest
