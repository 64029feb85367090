"""Whole runs in parallel worker processes.

Every worker has its own pipe, so one that dies takes nothing with it but its own run; the runs themselves live
in run directories and can be resumed.
"""

import multiprocessing
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filfl.cores import num_cores
from filfl.errors import FilflError, RunError

if TYPE_CHECKING:
    from filfl.runs import Follows  # a worker must not import torch before it ignores Ctrl-C


@dataclass(frozen=True)
class Task:
    """One run to be made: its config as a table, where it goes, what a person calls it, and who follows it."""

    table: Mapping[str, Any]
    directory: Path
    label: str
    followers: "tuple[Follows, ...]" = ()


@dataclass(frozen=True)
class Progress:
    """A round that a run has finished, or, with `finished`, that the run has ended."""

    directory: Path
    round: int
    accuracy: float | None
    filtered: int
    finished: bool = False


def run_all(
    tasks: Sequence[Task], jobs: int, resume: bool, show: Callable[[Progress], None], say: Callable[[str], None]
) -> None:
    """Run every task, `jobs` at a time. A run that cannot go on stops all of them with its error."""
    waiting = list(tasks)
    jobs = min(jobs, len(tasks))
    share = max(1, num_cores() // max(1, jobs))
    workers: dict[Connection, tuple[SpawnProcess, Task | None]] = {}
    context = multiprocessing.get_context("spawn")
    try:
        for _ in range(jobs):
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs, resume, share), daemon=True)
            process.start()
            theirs.close()
            workers[ours] = (process, waiting.pop(0))
            ours.send(workers[ours][1])
        while workers:
            for pipe in [p for p in wait(list(workers)) if isinstance(p, Connection)]:
                process, task = workers[pipe]
                try:
                    message = pipe.recv()
                except (EOFError, OSError):
                    process.join()
                    raise RunError(
                        f"the process of {task.directory if task else 'a run'} died (exit code {process.exitcode}; "
                        "-9 often means that memory ran out): start again (run and compare: with --resume), or take "
                        "fewer --jobs"
                    ) from None
                if isinstance(message, FilflError):
                    raise message
                if isinstance(message, str):
                    say(message)
                    continue
                show(message)
                if message.finished:
                    following = waiting.pop(0) if waiting else None
                    pipe.send(following)
                    if following is None:
                        process.join()
                        del workers[pipe]
                    else:
                        workers[pipe] = (process, following)
    finally:
        for process, _ in workers.values():
            process.terminate()
        for process, _ in workers.values():
            process.join()


def _work(pipe: Connection, resume: bool, workers: int) -> None:
    """A worker: runs what it is sent until it is sent None. Ctrl-C is the parent's business.

    `workers` is this run's share of the cores, for configs that do not say.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    from filfl.config import Config
    from filfl.simulation import simulate

    while (task := pipe.recv()) is not None:

        def tell(record: Mapping[str, Any], state: object, task: Task = task) -> None:
            pipe.send(Progress(task.directory, record["round"], record["test_accuracy"], record["num_filtered"]))

        try:
            given = task.table.get("execution", {})
            config = Config.from_table({**task.table, "execution": {"workers": workers, **given}})
            watchers = [tell, *task.followers]
            result = simulate(config, callbacks=watchers, out=task.directory, resume=resume, say=pipe.send)
            last = result.records[-1]
            accuracy, filtered = last["test_accuracy"], last["num_filtered"]
            pipe.send(Progress(task.directory, last["round"], accuracy, filtered, finished=True))
        except FilflError as error:
            pipe.send(error)
            return
        except (BrokenPipeError, ConnectionResetError):
            return
