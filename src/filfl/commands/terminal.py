"""What the commands share: the console, the default directory for results, and the end after Ctrl-C."""

import json
import math
import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from filfl.commands.interrupt import INTERRUPTED

if TYPE_CHECKING:  # matplotlib is slow to import
    from filfl.report.comparison import Comparison

if sys.stdout is None:  # the shell closed it: filfl ... >&-
    sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115 - open until Python ends
if isinstance(sys.stdout, TextIOWrapper):
    sys.stdout.reconfigure(errors="backslashreplace")  # a name that this terminal cannot show is no reason to stop

console = Console(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else 120)


def printable(text: str) -> str:
    """A text from outside without characters that a terminal obeys, such as an escape sequence in a client's name."""
    return "".join(each if each.isprintable() or each == "\n" else ascii(each)[1:-1] for each in text)


def say(text: str, style: str | None = None, wrap: bool = False) -> None:
    """Print a line as it is: brackets are not markup, and long paths are not wrapped, or only with `wrap`."""
    console.print(printable(text), style=style, markup=False, highlight=False, soft_wrap=not wrap)


@contextmanager
def for_a_program(as_json: bool) -> Iterator[None]:
    """With --json, stdout is for one JSON document, so everything for a person goes to stderr."""
    console.stderr = as_json
    try:
        yield
    finally:
        console.stderr = False


def print_json(value: object) -> None:
    """The JSON document. Numbers that JSON does not have are null."""
    print(json.dumps(_finite(value), indent=2, allow_nan=False))


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def print_table(table: Table, expendable: Sequence[str] = (), everything: str = "") -> None:
    """Print a table and its caption. A terminal that is too narrow for all columns shows fewer, with whole cells.

    expendable: the headings of the columns to leave out, the first of them first; then from the right.
    everything: where all columns are.
    """
    wide, left_out = console.options.update_width(10_000), []
    while len(table.columns) > 2 and Measurement.get(console, wide, table).maximum > console.width:
        headings = [str(column.header) for column in table.columns]
        heading = next((each for each in expendable if each in headings), headings[-1])
        left_out.append(heading)
        kept = [column for column in table.columns if column.header != heading]
        table.columns = [replace(column, _index=i) for i, column in enumerate(kept)]
    for i, column in enumerate(table.columns):
        column.no_wrap, column.overflow = i > 0, "fold"
    console.print(table.title, style="bold", highlight=False)
    caption, table.title, table.caption = table.caption, None, None
    console.print(table)
    if left_out:
        names = ", ".join(" ".join(heading.split()) for heading in left_out)
        console.print(f"Not shown at this width: {names}{everything}.", highlight=False, markup=False)
    console.print(caption, style="dim", highlight=False)


def show_comparison(comparison: "Comparison") -> None:
    """The table, and where the files are."""
    from filfl.simulation.result import NEEDS_MATPLOTLIB, can_draw

    print_table(comparison.table.rich(), comparison.table.expendable, f" (all are in {comparison.path.name})")
    say(f"table           {comparison.path}")
    if comparison.pictures:
        say(f"picture         {comparison.pictures[0]}")
    elif not can_draw():
        say(f"picture         none: it {NEEDS_MATPLOTLIB}")
    if more := comparison.pictures[1:]:
        say(f"single curves   {', '.join(path.name for path in more)}", wrap=True)


def default_directory(name: str, resume: bool, mark: str) -> Path:
    """The first free one of runs/NAME, runs/NAME-2, ...; to resume, the last one that has a file `mark`."""
    taken, free = [], Path("runs") / name
    while free.exists():
        taken.append(free)
        free = Path("runs") / f"{name}-{len(taken) + 1}"
    return next((directory for directory in reversed(taken) if resume and (directory / mark).exists()), free)


@contextmanager
def resumable(*missing: str) -> Iterator[None]:
    """After Ctrl-C, show the command that resumes this one, with the words that are missing in it, and exit."""
    try:
        yield
    except KeyboardInterrupt:
        say("\nInterrupted. All finished rounds are saved. To resume:", style="yellow")
        say(f"  {shlex.join(['filfl', *sys.argv[1:], *missing])}")
        raise typer.Exit(INTERRUPTED) from None


def missing_words(directory: Path, out: Path | None, resume: bool) -> list[str]:
    """What a command needs in addition to be resumed in `directory`."""
    return [*(["--out", str(directory)] if out is None else []), *([] if resume else ["--resume"])]
