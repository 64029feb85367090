"""The user's own selection."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from filfl.availability.base import Ids
from filfl.errors import only_from_python
from filfl.selection.base import Ask, Selection


@dataclass(frozen=True, kw_only=True)
class OwnSelection(Selection):
    """Your own function (pool, k, ask, rng) -> ids, given from Python: filfl.simulate(..., selection=function)."""

    def __call__(self, pool: Ids, k: int, ask: Ask, rng: np.random.Generator) -> Sequence[int]:
        raise only_from_python("selection.name", "own", "selection")
