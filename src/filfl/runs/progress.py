"""The progress of runs: bars in a terminal and in a notebook."""

import multiprocessing
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from filfl.runs.callbacks import Callback, RunStart

REFRESH = 0.2
"""The least number of seconds between two updates in a notebook."""


def numbers(accuracy: float | None, filtered: int) -> str:
    """What stands beside the bar of a run."""
    shown = "  --  " if accuracy is None else f"{accuracy:6.3f}"
    return f"accuracy {shown}  |S^f| {filtered:3d}"


class Bars(Progress):
    """Bars, in a terminal and in a notebook only; `main` is the first one."""

    def __init__(self, console: Console, name: str, total: int, numbers: str = "", completed: int = 0) -> None:
        """console: where bars are shown, if it is a terminal or a notebook."""
        super().__init__(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None if not console.is_jupyter else 40),
            MofNCompleteColumn(),
            TextColumn("{task.fields[numbers]}", markup=False),
            TimeRemainingColumn(compact=True),
            console=console,
            disable=not console.is_terminal or console.is_jupyter,
            # What is printed during a run appears above the bars. What goes to a file or a pipe must stay there.
            redirect_stdout=_is_terminal(sys.stdout),
        )
        self.main = self.add_task(name, total=total, completed=completed, numbers=numbers)
        # rich itself needs ipywidgets in a notebook. A display that is replaced needs nothing.
        self._notebook: Any = None
        self._shown = 0.0

    def start(self) -> None:
        super().start()
        if self.console.is_jupyter:
            self._notebook = import_module("IPython.display").display(self._table(), display_id=True)

    def stop(self) -> None:
        super().stop()
        self._show_in_notebook()

    def update(self, task_id: TaskID, **changes: Any) -> None:
        super().update(task_id, **changes)
        if time.monotonic() - self._shown > REFRESH:
            self._show_in_notebook()

    def _show_in_notebook(self) -> None:
        if self._notebook:
            self._shown = time.monotonic()
            self._notebook.update(self._table())

    def _table(self) -> Any:
        return self.make_tasks_table(self.tasks)


class ProgressBar:
    """The progress of a run that was started from Python: a bar on stderr, or below the cell of a notebook."""

    @contextmanager
    def follow(self, run: RunStart) -> Iterator[Callback]:
        console = python_console()
        if console is None or len(run.records) >= run.config.rounds:
            yield lambda record, state: None
            return
        with Bars(console, "round", run.config.rounds, completed=len(run.records)) as bars:
            accuracy: float | None = None

            def show(record: Mapping[str, Any], state: object) -> None:
                nonlocal accuracy
                accuracy = accuracy if record["test_accuracy"] is None else record["test_accuracy"]
                bars.update(bars.main, completed=record["round"], numbers=numbers(accuracy, record["num_filtered"]))

            yield show


def python_console() -> Console | None:
    """Where a call from Python shows its bars: stderr, if it is a terminal, or the notebook; otherwise None.

    Not in a worker process: the bars of several runs would overwrite each other.
    """
    if multiprocessing.parent_process() is not None:
        return None
    console = Console(stderr=True)
    return console if console.is_jupyter or _is_terminal(sys.stderr) else None


def _is_terminal(stream: Any) -> bool:
    """Not as rich decides it: with FORCE_COLOR set, it takes a pipe for a terminal."""
    return stream is not None and bool(stream.isatty())
