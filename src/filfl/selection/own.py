"""The user's own selection."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from filfl.errors import ConfigError
from filfl.selection.base import Ask, Selection


@dataclass(frozen=True, kw_only=True)
class OwnSelection(Selection):
    """Your own function (pool, k, ask, rng) -> ids, given from Python: filfl.simulate(..., selection=function)."""

    def __call__(self, pool: Sequence[int], k: int, ask: Ask, rng: np.random.Generator) -> Sequence[int]:
        raise ConfigError(
            'selection.name = "own" stands for a selection given from Python: call '
            "filfl.simulate(config, selection=...), or name another selection (see `filfl list`)"
        )
