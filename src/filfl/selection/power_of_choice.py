"""Power-of-choice.

Cho, Wang, Joshi: Client Selection in Federated Learning: Convergence Analysis and Power-of-Choice Selection
Strategies. 2020.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from filfl.availability.base import Ids
from filfl.config.schema import Count
from filfl.selection.base import Ask, Queries, Selection

if TYPE_CHECKING:
    from filfl.config.config import Config


@dataclass(frozen=True, kw_only=True)
class PowerOfChoice(Selection):
    """Of d candidates, drawn in proportion to their data, the K with the highest loss of the current model.

    The loss is that of w_t on the client's validation data. Ties go to the lower id; clients whose loss is not a
    number are chosen last.
    """

    queries: ClassVar[Queries] = "always"
    d: Count | None = None
    """The number of candidates, at least K. d = K is random selection in proportion to the data. Unset, every client
    of the pool is a candidate, which is the strongest bias and what the paper's authors ran."""

    def __call__(self, pool: Ids, k: int, ask: Ask, rng: np.random.Generator) -> Sequence[int]:
        candidates = pool
        if self.d is not None and self.d < len(pool):
            p = ask.num_examples(pool).astype(float)
            if p.any():  # a client whose number is unknown or not credible is not a candidate
                drawn = rng.choice(pool, size=min(self.d, int(np.count_nonzero(p))), replace=False, p=p / p.sum())
            else:
                drawn = rng.choice(pool, size=self.d, replace=False)
            candidates = np.sort(drawn)
        losses = ask.losses(candidates)
        ranked = sorted(losses, key=lambda i: (math.isnan(losses[i]), -losses[i], i))
        return ranked[:k]

    def problems(self, config: "Config") -> list[str]:
        problems = super().problems(config)
        if self.d is not None and self.d < self.k:
            problems.append(f"selection.d must be at least selection.k = {self.k} (got {self.d})")
        return problems
