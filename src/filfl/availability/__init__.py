"""Which clients are available in round t. To add an availability, add one file here and one line below."""

from filfl.availability.always import Always
from filfl.availability.base import Availability
from filfl.availability.diurnal import Diurnal
from filfl.availability.lognormal import Lognormal
from filfl.availability.redraw import Redraw

AVAILABILITIES: dict[str, type[Availability]] = {
    "always": Always,
    "redraw": Redraw,
    "diurnal": Diurnal,
    "lognormal": Lognormal,
}

__all__ = ["AVAILABILITIES", "Availability"]
