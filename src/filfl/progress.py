"""Progress that a person can watch: a live bar in a terminal, plain lines elsewhere."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from filfl.workers import Progress as RunProgress
from filfl.workers import Task

LINES = 10
"""How many plain lines a run prints where nobody watches a terminal."""


def _numbers(accuracy: float | None, filtered: int) -> str:
    shown = "  --  " if accuracy is None else f"{accuracy:6.3f}"
    return f"accuracy {shown}  |S^f| {filtered:3d}"


def _bar(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TextColumn("{task.fields[numbers]}", markup=False),
        TimeRemainingColumn(compact=True),
        console=console,
    )


class RoundsShown:
    """The progress of one run; a callback of it."""

    def __init__(self, console: Console, rounds: int) -> None:
        self._console = console
        self._rounds = rounds
        self._live = console.is_terminal
        self._bar = _bar(console)
        self._task: TaskID | None = None
        self._accuracy: float | None = None
        self._first: tuple[int, float] | None = None

    def __enter__(self) -> "RoundsShown":
        if self._live:
            self._task = self._bar.add_task("round", total=self._rounds, numbers="")
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._live:
            self._bar.stop()

    def __call__(self, record: Mapping[str, Any], state: object) -> None:
        t = record["round"]
        self._first = self._first or (t, time.monotonic())
        self._accuracy = self._accuracy if record["test_accuracy"] is None else record["test_accuracy"]
        numbers = _numbers(self._accuracy, record["num_filtered"])
        if self._task is not None:
            self._bar.update(self._task, completed=t, numbers=numbers)
        elif t % max(1, self._rounds // LINES) == 0 or t == self._rounds:
            self._console.print(
                f"round {t:4d}/{self._rounds}  {numbers}  {self._left(t)}", highlight=False, markup=False
            )
        for note in record["notes"]:
            self._console.print(f"round {t}: {note}", style="yellow", highlight=False, markup=False)

    def _left(self, t: int) -> str:
        assert self._first is not None
        first, since = self._first
        if t == first:
            return ""
        return f"{(time.monotonic() - since) / (t - first) * (self._rounds - t):.0f} s left"


class RunsShown:
    """The progress of many runs: one bar for all of them, one for each that is under way."""

    def __init__(self, console: Console, tasks: Sequence[Task]) -> None:
        self._console = console
        self._labels = {task.directory: task.label for task in tasks}
        self._rounds: dict[Path, int] = {task.directory: task.table["rounds"] for task in tasks}
        self._live = console.is_terminal
        self._bar = _bar(console)
        self._bars: dict[Path, TaskID] = {}
        self._done: dict[Path, int] = dict.fromkeys(self._rounds, 0)
        self._finished = 0
        self._all: TaskID | None = None

    def __enter__(self) -> "RunsShown":
        if self._live:
            self._all = self._bar.add_task("all rounds", total=sum(self._rounds.values()), numbers="starting")
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._live:
            self._bar.stop()

    def __call__(self, progress: RunProgress) -> None:
        run = progress.directory
        name = self._labels[run]
        self._done[run] = progress.round
        self._finished += progress.finished
        numbers = _numbers(progress.accuracy, progress.filtered)
        if progress.finished:
            bar = self._bars.pop(run, None)
            if bar is not None:
                self._bar.remove_task(bar)
            count = f"{self._finished:3d}/{len(self._rounds)}"
            self._console.print(f"{count} {name:28s} {numbers}", highlight=False, markup=False)
        elif self._live:
            if run not in self._bars:
                self._bars[run] = self._bar.add_task(name, total=self._rounds[run], numbers="")
            self._bar.update(self._bars[run], completed=progress.round, numbers=numbers)
        if self._all is not None:
            runs = f"{self._finished} of {len(self._rounds)} runs"
            self._bar.update(self._all, completed=sum(self._done.values()), numbers=runs)
