"""Which clients train. To add a selection, add one file here and one line below."""

from filfl.selection.base import Ask, Selection, Selects
from filfl.selection.divfl import DivFL
from filfl.selection.own import OwnSelection
from filfl.selection.power_of_choice import PowerOfChoice
from filfl.selection.random import Random, RandomWithReplacement

SELECTIONS: dict[str, type[Selection]] = {
    "random": Random,
    "random-with-replacement": RandomWithReplacement,
    "power-of-choice": PowerOfChoice,
    "divfl": DivFL,
    "own": OwnSelection,
}

__all__ = ["SELECTIONS", "Ask", "OwnSelection", "Selection", "Selects"]
