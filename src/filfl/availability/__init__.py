"""Who is here at round t. A new availability is one file here and one line below."""

from filfl.availability.always import Always
from filfl.availability.base import Availability
from filfl.availability.connected import Connected
from filfl.availability.diurnal import Diurnal
from filfl.availability.lognormal import Lognormal
from filfl.availability.redraw import Redraw

AVAILABILITIES: dict[str, type[Availability]] = {
    "always": Always,
    "redraw": Redraw,
    "diurnal": Diurnal,
    "lognormal": Lognormal,
    "connected": Connected,
}

__all__ = ["AVAILABILITIES", "Availability"]
