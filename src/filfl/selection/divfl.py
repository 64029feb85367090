"""DivFL: select diverse clients, by facility location.

Balakrishnan, Li, Zhou, Himayat, Smith, Bilmes: Diverse Client Selection for Federated Learning via Submodular
Maximization. ICLR 2022.
"""

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from filfl.availability.base import Ids
from filfl.selection.base import Ask, Memory, Queries, Selection

if TYPE_CHECKING:
    from filfl.config.config import Config

COLUMNS = 1 << 18
"""How many numbers per client are converted to float64 at a time, to keep the extra memory small."""


@dataclass(frozen=True, kw_only=True)
class DivFL(Selection):
    """The K clients whose gradients represent all the others: greedy facility location on ||g_k - g_i||."""

    of: Literal["gradients", "updates", "predictions"] = "gradients"
    """The vectors that are compared. gradients: every client of the pool sends its gradient at the current model,
    as large as the model. updates: the latest update of each client, zero for one that has not trained, at no extra
    communication. predictions: the logits on V from the latest filter round, at no extra communication; for
    filter.transport = "logits"."""
    sum: Literal["smallest", "largest"] = "smallest"
    """Which client is added next: the one that leaves the smallest sum of the distances to the nearest chosen client,
    which is DivFL, or the largest sum, as in the code of FilFL's authors."""

    @property
    def remembers(self) -> Memory | None:
        return None if self.of == "gradients" else self.of

    def problems(self, config: "Config") -> list[str]:
        problems = super().problems(config)
        by_logits = config.filter.transport == "logits" and config.filter.method is not None
        if self.of == "gradients" and by_logits:
            problems.append(
                'selection.of = "gradients" makes every client of S^f upload a vector as large as the model, which '
                'defeats filter.transport = "logits"; set selection.of to "predictions" or "updates"'
            )
        if self.of == "predictions" and not by_logits:
            problems.append(
                'selection.of = "predictions" needs the logits of filter rounds; set filter.transport to "logits", or '
                'selection.of to "gradients" or "updates"'
            )
        return problems

    @property
    def queries(self) -> Queries:
        return "always" if self.of == "gradients" else "never"

    def __call__(self, pool: Ids, k: int, ask: Ask, rng: np.random.Generator) -> Sequence[int]:
        vectors: Mapping[int, Tensor] = getattr(ask, self.of)(pool)
        # Shuffled, so that ties are broken at random. At the start all updates are zero, so all clients tie.
        ids = [int(i) for i in rng.permutation(sorted(vectors))]
        if not ids:
            return []
        greedy = lazy_greedy if self.sum == "smallest" else reversed_greedy
        return [ids[i] for i in greedy(distances([vectors[i] for i in ids]), k)]


def distances(vectors: Sequence[Tensor]) -> NDArray[np.float64]:
    """All pairwise Euclidean distances, from one matrix product in float64."""
    n, d = len(vectors), len(vectors[0])
    gram = torch.zeros(n, n, dtype=torch.float64)
    for start in range(0, d, COLUMNS):
        columns = torch.stack([v[start : start + COLUMNS] for v in vectors]).double()
        columns -= columns.mean(dim=0)  # distances do not change, and close vectors lose fewer digits
        gram += (columns @ columns.T).cpu()
    squares = gram.diagonal()
    result = (squares[:, None] + squares[None, :] - 2 * gram).clamp(min=0).sqrt()
    return np.asarray(result.fill_diagonal_(0.0).numpy())


def gain(distances: NDArray[np.float64], nearest: NDArray[np.float64], i: int) -> float:
    """The decrease of sum_k min_{j in A} D[k, j] when i joins A. `nearest` holds that minimum for every k.

    No term, and so not the rounded sum either, increases as `nearest` decreases. An earlier gain is therefore an upper
    bound.
    """
    return float(np.maximum(nearest - distances[:, i], 0.0).sum())


def lazy_greedy(distances: NDArray[np.float64], k: int) -> list[int]:
    """The k indices that greedily minimise sum_k min_{i in A} D[k, i]. Ties go to the first index.

    Before the first choice every distance to A counts as the largest pairwise distance. The choices equal those of
    plain greedy, which evaluates every candidate in every step: if the updated gain of a candidate still exceeds all
    upper bounds, no other candidate has to be evaluated.
    """
    n = len(distances)
    nearest = np.full(n, distances.max(initial=0.0))
    bounds = [(-gain(distances, nearest, i), i, 0) for i in range(n)]
    heapq.heapify(bounds)
    chosen: list[int] = []
    while bounds and len(chosen) < k:
        _, i, as_of = heapq.heappop(bounds)
        if as_of == len(chosen):
            chosen.append(i)
            nearest = np.minimum(nearest, distances[:, i])
        else:
            heapq.heappush(bounds, (-gain(distances, nearest, i), i, len(chosen)))
    return chosen


def reversed_greedy(distances: NDArray[np.float64], k: int) -> list[int]:
    """The k indices of which each in turn leaves the largest sum_k min_{i in A} D[k, i]. Ties go to the first index."""
    nearest, left = np.full(len(distances), np.inf), list(range(len(distances)))
    chosen: list[int] = []
    while left and len(chosen) < k:
        chosen.append(max(left, key=lambda i: float(np.minimum(nearest, distances[:, i]).sum())))
        left.remove(chosen[-1])
        nearest = np.minimum(nearest, distances[:, chosen[-1]])
    return chosen
