"""The filter that filters nothing: Remark 1 of the paper, under which FilFL is standard federated learning."""

from collections.abc import Sequence

import numpy as np

from filfl.filtering.base import Client, Filtering, Reward, Step


def keep_all(clients: Sequence[Client], reward: Reward[Client], rng: np.random.Generator | None = None) -> Filtering:
    """Keep every client: filter rounds as usual, with S^f = S_t."""
    return Filtering(kept=tuple(clients), trace=tuple(Step(u, None, None, 1.0, True) for u in clients))
