"""The parts of the campaign by name."""

from .campaign import Part
from .combinations import Combinations
from .configs import Configs
from .data_files import DataFiles
from .directories import Directories
from .messages import Messages
from .pages import Pages
from .processes import Kills, Signals

PARTS: dict[str, type[Part]] = {
    part.name: part for part in (Configs, Combinations, DataFiles, Directories, Messages, Pages, Signals, Kills)
}
