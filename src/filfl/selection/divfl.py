"""DivFL: diverse clients.

Balakrishnan, Li, Zhou, Himayat, Smith, Bilmes: Diverse Client Selection for Federated Learning via Submodular
Maximization. ICLR 2022.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from filfl.availability.base import Ids
from filfl.selection.base import Ask, Selection
from filfl.selection.facility_location import lazy_greedy

COLUMNS = 1 << 18
"""Numbers a client that are brought to float64 at a time, so that memory stays small beside the vectors."""


@dataclass(frozen=True, kw_only=True)
class DivFL(Selection):
    """The K whose gradients stand for everybody's: greedy facility location on ||g_k - g_i||.

    `of = "gradients"` asks every client of the pool for its gradient at the current model. `of = "updates"` costs
    no message: the server goes by how each client last changed the model, zero for one that has not trained.
    `of = "predictions"`, for `filter.transport = "logits"`: by what the clients' models said to V when they were last
    filtered, which costs no message either.
    """

    of: Literal["gradients", "updates", "predictions"] = "gradients"

    @property
    def wants_updates(self) -> bool:
        return self.of == "updates"

    @property
    def wants_predictions(self) -> bool:
        return self.of == "predictions"

    def __call__(self, pool: Ids, k: int, ask: Ask, rng: np.random.Generator) -> Sequence[int]:
        known = {"gradients": ask.gradients, "updates": ask.updates, "predictions": ask.predictions}
        vectors = known[self.of](pool)
        # Shuffled, so that clients about whom the same is known (nothing, at first) are chosen by chance.
        ids = [int(i) for i in rng.permutation(sorted(vectors))]
        if not ids:
            return []
        return [ids[i] for i in lazy_greedy(distances([vectors[i] for i in ids]), k)]


def distances(vectors: Sequence[Tensor]) -> NDArray[np.float64]:
    """All pairwise Euclidean distances, by one matrix product in float64."""
    n, d = len(vectors), len(vectors[0])
    gram = torch.zeros(n, n, dtype=torch.float64)
    for start in range(0, d, COLUMNS):
        columns = torch.stack([v[start : start + COLUMNS] for v in vectors]).double()
        columns -= columns.mean(dim=0)  # distances stay, and near vectors keep their digits
        gram += (columns @ columns.T).cpu()
    squares = gram.diagonal()
    result = (squares[:, None] + squares[None, :] - 2 * gram).clamp(min=0).sqrt()
    return np.asarray(result.fill_diagonal_(0.0).numpy())
