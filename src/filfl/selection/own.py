"""A selection given from Python as a function."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from filfl.availability.base import Ids
from filfl.config.schema import NOT_AN_OPTION
from filfl.selection.base import Ask, Memory, Selection, Selects


@dataclass(frozen=True, kw_only=True)
class OwnSelection(Selection):
    """Your own function (pool, k, ask, rng) -> ids: filfl.simulate(..., selection=function).

    The function may have two attributes: `with_replacement = True` if it may choose a client several times, and
    `remembers = "updates"` (or "predictions") if it calls `ask.updates` (or `ask.predictions`).
    """

    name: ClassVar[str] = "own"
    function: Selects | None = field(default=None, metadata=NOT_AN_OPTION)

    @property
    def with_replacement(self) -> bool:
        return bool(getattr(self.function, "with_replacement", False))

    @property
    def remembers(self) -> Memory | None:
        return getattr(self.function, "remembers", None)

    def __call__(self, pool: Ids, k: int, ask: Ask, rng: np.random.Generator) -> Sequence[int]:
        assert self.function is not None  # see Config.require_objects
        return self.function(pool, k, ask, rng)
