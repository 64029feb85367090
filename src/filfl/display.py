"""Short descriptions of objects: a title and a few facts, as text for a terminal and as HTML for a notebook."""

import html
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

BLOCKS = "▁▂▃▄▅▆▇█"
WIDTH = 24
"""The most characters of a sparkline."""
LONGEST = 96
"""The most characters of a fact."""


def sparkline(values: Sequence[float | None]) -> str:
    """The course of a number as blocks of eight heights, from its lowest to its highest value. None is left out."""
    known = np.array([value for value in values if value is not None], dtype=np.float64)
    if len(known) == 0:
        return ""
    shown = known[np.unique(np.linspace(0, len(known) - 1, WIDTH).round().astype(int))]
    low, high = shown.min(), shown.max()
    heights = (shown - low) / (high - low) if high > low else np.zeros_like(shown)
    return "".join(BLOCKS[int(height * (len(BLOCKS) - 1) + 0.5)] for height in heights)


def some(names: Sequence[object] | NDArray[Any], most: int = 5) -> str:
    """The first names of a list, with dots if there are more: ann, bob, cy, ..."""
    return ", ".join(map(str, names[:most])) + (", ..." if len(names) > most else "")


def count(number: int, noun: str) -> str:
    """1 seed, 3 seeds"""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def as_text(title: str, facts: Mapping[str, str]) -> str:
    """The title, and one line per fact."""
    width = max(map(len, facts), default=0)
    return "\n".join([_plain(title), *(f"  {fact:{width}s}  {_plain(value)}" for fact, value in facts.items())])


def as_html(title: str, facts: Mapping[str, str]) -> str:
    """The title, and a table with one row per fact. Every text is escaped: names come from the user's data."""
    row = '<tr><th style="text-align: left">{}</th><td style="text-align: left">{}</td></tr>'
    rows = (row.format(html.escape(fact), html.escape(_plain(value))) for fact, value in facts.items())
    return f"<div><b>{html.escape(_plain(title))}</b><table>{''.join(rows)}</table></div>"


def _plain(text: str) -> str:
    """A text as one line that every terminal can print. A name from a source can be anything, also half a character."""
    line = " ".join(text.encode("utf-8", "replace").decode().split())
    line = "".join(character if character.isprintable() else "?" for character in line)
    return line if len(line) <= LONGEST else line[: LONGEST - 3] + "..."
