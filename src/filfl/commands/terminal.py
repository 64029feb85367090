"""What the commands share: the console, where results go, and how to stop."""

import shlex
import sys
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import NoReturn

import typer
from rich.console import Console

STOPPED = 130
"""The exit code of a command that Ctrl-C ended."""

console = Console(width=None if sys.stdout.isatty() else 120)


def say(text: str, style: str | None = None) -> None:
    """Print a sentence as it is: brackets in a name are not markup, and a path is not cut in two."""
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def default_directory(name: str, resume: bool, mark: str) -> Path:
    """The first free one of runs/NAME, runs/NAME-2, ...; to resume, the last with a file `mark` in it."""
    candidates = (Path("runs") / (name if i == 1 else f"{name}-{i}") for i in count(1))
    previous = None
    for candidate in candidates:
        if not candidate.exists():
            return previous if resume and previous else candidate
        previous = candidate if (candidate / mark).exists() else previous
    raise AssertionError("count() does not end")


def stopped(command: Sequence[str]) -> NoReturn:
    """Say by which command to go on after Ctrl-C, and end."""
    say("\nStopped. Nothing is lost; go on with:", style="yellow")
    say(f"  {shlex.join(command)}")
    raise typer.Exit(STOPPED)
