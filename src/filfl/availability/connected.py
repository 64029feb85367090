"""Who is connected to a federation."""

from dataclasses import dataclass

from filfl.availability.base import Availability, Ids
from filfl.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Connected(Availability):
    """Whoever is connected to a Flower federation at the time: see filfl.flower."""

    def __call__(self, t: int, num_clients: int, seed: int) -> Ids:
        raise ConfigError(
            'availability.name = "connected" is for a federation (see docs/flower.md): take another name for a '
            "simulation (see `filfl list`)"
        )
