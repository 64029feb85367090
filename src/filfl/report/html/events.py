"""Refused replies and notes of a run."""

import re
from typing import Any

from filfl.runs.reader import Run

MOST_SHOWN = 2000
"""A page lists at most this many texts per run: those that occur in most rounds."""


def events(run: Run) -> list[list[Any]]:
    """The reasons for which replies of a client were refused, and the notes: for each the client's number and name
    (None and empty for a note), the text, in how many rounds it occurs, and the first and the last of them.

    Texts that differ only in numbers are one, with the numbers of the last round.
    """
    found: dict[tuple[int | None, str], list[Any]] = {}
    for record in run.records:
        t = record["round"]
        texts = [(int(k), reason) for k, reason in record["refused"].items()]
        for k, text in [*texts, *((None, note) for note in record["notes"])]:
            name = "" if k is None else run.name_of(k)
            row = found.setdefault((k, alike(text)), [k, name, text, 0, t, t])
            row[2], row[3], row[5] = text, row[3] + 1, t
    often = sorted(found.values(), key=lambda row: -row[3])[:MOST_SHOWN]
    return sorted(often, key=lambda row: (row[4], row[0] is None, row[0] or 0))


def alike(text: str) -> str:
    """The text without its numbers, except those of clients and nodes."""
    return re.sub(r"(?<!client )(?<!node )(?<!\d)[-+]?\d+([.,]\d+)*(e[-+]?\d+)?", "#", text)
