"""Who is connected to a federation."""

from dataclasses import dataclass

from filfl.availability.base import Availability, Ids
from filfl.errors import only_on_flower


@dataclass(frozen=True, kw_only=True)
class Connected(Availability):
    """Whoever is connected to a Flower federation at the time: see filfl.flower."""

    def __call__(self, t: int, num_clients: int, seed: int) -> Ids:
        raise only_on_flower("availability.name", "connected")
