"""Power-of-choice.

Cho, Wang, Joshi: Client Selection in Federated Learning: Convergence Analysis and Power-of-Choice Selection
Strategies. 2020.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from filfl.availability.base import Ids
from filfl.options import Count
from filfl.selection.base import Ask, Selection


@dataclass(frozen=True, kw_only=True)
class PowerOfChoice(Selection):
    """Of d candidates, drawn in proportion to their data, the K with the highest loss of the current model.

    d = K is random selection in proportion to the data; d unset is the whole pool, the strongest bias. Of equal
    losses the lower id is taken; a client whose loss is not a number comes last.
    """

    d: Count | None = None

    def __call__(self, pool: Ids, k: int, ask: Ask, rng: np.random.Generator) -> Sequence[int]:
        candidates = pool
        if self.d is not None and self.d < len(pool):
            p = ask.num_examples(pool).astype(float)
            candidates = np.sort(rng.choice(pool, size=self.d, replace=False, p=p / p.sum()))
        losses = ask.losses(candidates)
        ranked = sorted(losses, key=lambda i: (math.isnan(losses[i]), -losses[i], i))
        return ranked[:k]
