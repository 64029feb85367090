"""The progress of runs that the command line shows: bars in a terminal and in a notebook, plain lines elsewhere."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import TaskID

from filfl.comparison.pool import PlannedRun, RunProgress
from filfl.runs.progress import Bars, numbers

LINES = 10
"""How many lines one run prints where there is no terminal."""


class RunDisplay(Bars):
    """The progress of one run. It is a callback of the run."""

    def __init__(self, console: Console, rounds: int) -> None:
        super().__init__(console, "round", rounds)
        self._rounds = rounds
        self._accuracy: float | None = None
        self._first: tuple[int, float] | None = None

    def __call__(self, record: Mapping[str, Any], state: object) -> None:
        t = record["round"]
        self._first = self._first or (t, time.monotonic())
        self._accuracy = self._accuracy if record["test_accuracy"] is None else record["test_accuracy"]
        shown = numbers(self._accuracy, record["num_filtered"])
        self.update(self.main, completed=t, numbers=shown)
        if self.disable and (t % max(1, self._rounds // LINES) == 0 or t == self._rounds):
            first, since = self._first
            left = "" if t == first else f"{(time.monotonic() - since) / (t - first) * (self._rounds - t):.0f} s left"
            _print_line(self.console, f"round {t:4d}/{self._rounds}  {shown}  {left}")
        for note in record["notes"]:
            _print_line(self.console, f"round {t}: {note}", style="yellow")


class ComparisonBars(Bars):
    """The progress of many runs: one bar for all of them, and one for each that is running."""

    def __init__(self, console: Console, runs: Sequence[PlannedRun]) -> None:
        super().__init__(console, "all rounds", sum(run.config.rounds for run in runs), "starting")
        self._runs = {run.directory: run for run in runs}
        self._rounds_done: dict[Path, int] = {}
        self._running: dict[Path, TaskID] = {}
        self._finished = 0

    def __call__(self, progress: RunProgress) -> None:
        run = self._runs[progress.directory]
        shown = numbers(progress.accuracy, progress.filtered)
        if progress.finished:
            self._finished += 1
            if (bar := self._running.pop(run.directory, None)) is not None:
                self.remove_task(bar)
        else:
            if run.directory not in self._running:
                self._running[run.directory] = self.add_task(run.label, total=run.config.rounds, numbers="")
            self.update(self._running[run.directory], completed=progress.round, numbers=shown)
        self._rounds_done[run.directory] = progress.round
        done = f"{self._finished} of {len(self._runs)} runs"
        self.update(self.main, completed=sum(self._rounds_done.values()), numbers=done)


class ComparisonDisplay(ComparisonBars):
    """The same, and a line for each result."""

    def __init__(self, console: Console, runs: Sequence[PlannedRun]) -> None:
        super().__init__(console, runs)
        self._width = max(len(run.label) for run in runs)

    def __call__(self, progress: RunProgress) -> None:
        super().__call__(progress)
        if progress.finished:
            label, shown = self._runs[progress.directory].label, numbers(progress.accuracy, progress.filtered)
            _print_line(self.console, f"{self._finished:3d}/{len(self._runs)} {label:{self._width}s} {shown}")


def _print_line(console: Console, line: str, style: str | None = None) -> None:
    console.print(line, style=style, highlight=False, markup=False)
