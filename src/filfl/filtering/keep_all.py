"""The filter that keeps every client: Remark 1 of the paper, under which FilFL is standard federated learning."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from filfl.filtering.base import Client, Filter, Filtering, Reward, Step


def keep_all(clients: Sequence[Client], reward: Reward[Client], rng: np.random.Generator | None = None) -> Filtering:
    """Keep every client. Filter rounds take place as usual, with S^f = S_t."""
    return Filtering(kept=tuple(clients), trace=tuple(Step(u, None, None, 1.0, True) for u in clients))


@dataclass(frozen=True, kw_only=True)
class KeepAll(Filter):
    """Keep every client. Filter rounds take place as usual, with S^f = S_t."""

    screened: ClassVar[bool] = False

    def __call__(self, clients: Sequence[Client], reward: Reward[Client], rng: np.random.Generator) -> Filtering:
        return keep_all(clients, reward, rng)
