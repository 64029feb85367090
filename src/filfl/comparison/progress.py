"""The progress of runs: bars in a terminal, plain lines elsewhere."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from filfl.comparison.pool import PlannedRun, RunProgress

LINES = 10
"""How many lines one run prints where there is no terminal."""


def _numbers(accuracy: float | None, filtered: int) -> str:
    shown = "  --  " if accuracy is None else f"{accuracy:6.3f}"
    return f"accuracy {shown}  |S^f| {filtered:3d}"


class _Display(Progress):
    """Bars, in a terminal only; `main` is the first one."""

    def __init__(self, console: Console, name: str, total: int, numbers: str = "") -> None:
        super().__init__(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[numbers]}", markup=False),
            TimeRemainingColumn(compact=True),
            console=console,
            disable=not console.is_terminal,
        )
        self.main = self.add_task(name, total=total, numbers=numbers)

    def print_line(self, line: str, style: str | None = None) -> None:
        self.console.print(line, style=style, highlight=False, markup=False)


class RunDisplay(_Display):
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
        numbers = _numbers(self._accuracy, record["num_filtered"])
        self.update(self.main, completed=t, numbers=numbers)
        if self.disable and (t % max(1, self._rounds // LINES) == 0 or t == self._rounds):
            first, since = self._first
            left = "" if t == first else f"{(time.monotonic() - since) / (t - first) * (self._rounds - t):.0f} s left"
            self.print_line(f"round {t:4d}/{self._rounds}  {numbers}  {left}")
        for note in record["notes"]:
            self.print_line(f"round {t}: {note}", style="yellow")


class ComparisonDisplay(_Display):
    """The progress of many runs: one bar for all of them, one for each that is running, and a line for each result."""

    def __init__(self, console: Console, runs: Sequence[PlannedRun]) -> None:
        super().__init__(console, "all rounds", sum(run.config.rounds for run in runs), "starting")
        self._runs = {run.directory: run for run in runs}
        self._width = max(len(run.label) for run in runs)
        self._rounds_done: dict[Path, int] = {}
        self._running: dict[Path, TaskID] = {}
        self._finished = 0

    def __call__(self, progress: RunProgress) -> None:
        run = self._runs[progress.directory]
        numbers = _numbers(progress.accuracy, progress.filtered)
        if progress.finished:
            self._finished += 1
            if (bar := self._running.pop(run.directory, None)) is not None:
                self.remove_task(bar)
            self.print_line(f"{self._finished:3d}/{len(self._runs)} {run.label:{self._width}s} {numbers}")
        else:
            if run.directory not in self._running:
                self._running[run.directory] = self.add_task(run.label, total=run.config.rounds, numbers="")
            self.update(self._running[run.directory], completed=progress.round, numbers=numbers)
        self._rounds_done[run.directory] = progress.round
        done = f"{self._finished} of {len(self._runs)} runs"
        self.update(self.main, completed=sum(self._rounds_done.values()), numbers=done)
