"""The time-varying availability of the paper's experiments."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from filfl.availability.base import Availability, Ids
from filfl.config.schema import Count
from filfl.rng import stream

if TYPE_CHECKING:
    from filfl.config.config import Config
    from filfl.data import FederatedData


@dataclass(frozen=True, kw_only=True)
class Redraw(Availability):
    """n of the N clients, drawn without replacement at t = 1 and again whenever t mod every == 0 (the paper's)."""

    n: Count
    """The number of available clients, at most the number N of clients; N itself is every client always."""
    every: Count = 5
    """The number of rounds between two draws. 1 is a new draw in every round; more than `rounds` is a single draw."""

    def __call__(self, t: int, num_clients: int, seed: int) -> Ids:
        drawn_at = max(1, t - t % self.every)
        drawn = stream(seed, drawn_at, "availability").choice(num_clients, size=self.n, replace=False)
        return np.sort(drawn)

    def most_available(self, num_clients: int) -> int:
        return self.n

    def problems(self, config: "Config") -> list[str]:
        problems = []
        N, k = config.data.known_clients, config.selection.k
        if N is not None and self.n > N:
            problems.append(f"availability.n must be between 1 and data.clients = {N} (got {self.n})")
        if k > self.n:
            problems.append(f"selection.k must be between 1 and the {self.n} available clients (got {k})")
        return problems

    def problems_with(self, config: "Config", data: "FederatedData") -> list[str]:
        if self.n > data.num_clients:
            return [f"availability.n must be between 1 and the {data.num_clients} clients of the data (got {self.n})"]
        return []
