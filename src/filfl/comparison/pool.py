"""Parallel runs, each in a worker process.

Every worker is a `ProcessPoolExecutor` with one process. In a larger pool, a process that dies ends all the others.
"""

import multiprocessing
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import cloudpickle

from filfl.core.evidence import PREFIX
from filfl.errors import FilflError, PluginError, RunError
from filfl.system import num_cores

if TYPE_CHECKING:  # the parent does not need torch
    from filfl.config.config import Config
    from filfl.evaluation import Augment, Loss, Metric
    from filfl.runs import Callback, RunCallback

REFRESH = 0.1
"""Seconds between two looks at what the workers report."""


@dataclass(frozen=True)
class Given:
    """The functions of `filfl.simulate` that are not part of a config."""

    loss: "Loss | None" = None
    metrics: "Mapping[str, Metric] | None" = None
    augment: "Augment | None" = None
    callbacks: "Sequence[Callback | RunCallback]" = ()


@dataclass(frozen=True)
class PlannedRun:
    """One run of a comparison."""

    config: "Config"
    directory: Path
    label: str
    """Its name in the progress display."""
    given: Given = field(default_factory=Given)


@dataclass(frozen=True)
class RunProgress:
    """A run has finished a round or, with `finished`, its last round."""

    directory: Path
    round: int
    accuracy: float | None
    filtered: int
    finished: bool = False

    @classmethod
    def of(cls, directory: Path, record: Mapping[str, Any], finished: bool = False) -> "RunProgress":
        return cls(directory, record["round"], record["test_accuracy"], record["num_filtered"], finished)


def run_all(
    runs: Sequence[PlannedRun],
    jobs: int,
    resume: bool,
    show: Callable[[RunProgress], None],
    say: Callable[[str], None],
) -> None:
    """Make every run, `jobs` of them in parallel.

    An error in a run stops all runs. A worker process that is killed costs only its own run: the others are finished
    before this function raises `RunError`.
    """
    waiting = list(runs)
    jobs = min(jobs, len(runs))
    workers = [_Worker(max(1, num_cores() // jobs)) for _ in range(jobs)]
    running: dict[Future[RunProgress], tuple[_Worker, PlannedRun]] = {}
    killed: list[PlannedRun] = []

    def start_next(worker: _Worker) -> None:
        if waiting:
            run = waiting.pop(0)
            running[worker.submit(run, resume)] = worker, run
        else:
            worker.pool.shutdown(wait=False)

    said: set[str] = set()
    try:
        for worker in workers:
            start_next(worker)
        while running:
            done, _ = wait(running, timeout=REFRESH, return_when=FIRST_COMPLETED)
            for worker, _ in running.values():
                while worker.pipe.poll():
                    message: RunProgress | str = worker.pipe.recv()
                    if isinstance(message, str):
                        if message not in said and f": {PREFIX}" not in message:  # the report has those of a round
                            say(message)
                        said.add(message)
                    else:
                        show(message)
            for future in done:
                worker, run = running.pop(future)
                try:
                    show(future.result())
                except BrokenProcessPool:
                    say(f"{run.label}: its worker process was killed; the other runs continue")
                    killed.append(run)
                    worker = _Worker(worker.cores)
                    workers.append(worker)
                start_next(worker)
    except BaseException:
        for worker in workers:
            worker.pipe.close()  # its process exits
        raise
    finally:
        for worker in workers:
            worker.pool.shutdown()
    if killed:
        raise RunError(
            f"the worker process was killed in {len(killed)} of {len(runs)} runs, possibly because memory ran out: "
            f"{', '.join(str(run.directory) for run in killed)}; run the command again (run and compare: with "
            "--resume), with fewer --jobs if memory is short"
        )


class _Worker:
    """One process, and a pipe through which its runs report. `cores` is its share of the machine."""

    def __init__(self, cores: int) -> None:
        self.cores = cores
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.pool = ProcessPoolExecutor(1, context, _start_worker, (theirs,))

    def submit(self, run: PlannedRun, resume: bool) -> Future[RunProgress]:
        try:
            pickled = cloudpickle.dumps(run)  # also a lambda, and what is defined in a script or a notebook
        except Exception as error:
            raise PluginError(
                f"{run.label} cannot be sent to its worker process ({type(error).__name__}: {error}); the model, the "
                "data and all functions must be picklable"
            ) from None
        with _starting():
            return self.pool.submit(_make_run, pickled, resume, self.cores)


@contextmanager
def _starting() -> Iterator[None]:
    """The first task of a worker starts its process, which takes over some state of this one.

    It must ignore Ctrl-C, which only the parent handles. And it must not know the user's script, because it would run
    it again.
    """
    script = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    in_main_thread = threading.current_thread() is threading.main_thread()  # others cannot set a handler
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN) if in_main_thread else None
    try:
        yield
    finally:
        sys.modules["__main__"] = script
        if in_main_thread:
            signal.signal(signal.SIGINT, handler)


# The rest runs in a worker process.

_parent: Connection


def _start_worker(parent: Connection) -> None:
    """Exit as soon as the parent closes its end of the pipe or dies, even in the middle of a round."""
    global _parent
    _parent = parent
    threading.Thread(target=_exit_with_parent, daemon=True).start()


def _exit_with_parent() -> None:
    with suppress(EOFError, OSError):
        _parent.recv()
    os._exit(1)


def _make_run(pickled: bytes, resume: bool, cores: int) -> RunProgress:
    from filfl.simulation import simulate

    run: PlannedRun = pickle.loads(pickled)
    given = run.given

    def report(record: Mapping[str, Any], state: object) -> None:
        _parent.send(RunProgress.of(run.directory, record))

    execution = replace(run.config.execution, workers=run.config.execution.workers or cores)
    config = replace(run.config, execution=execution)
    try:
        result = simulate(
            config,
            loss=given.loss,
            metrics=given.metrics,
            augment=given.augment,
            callbacks=[report, *given.callbacks],
            out=run.directory,
            resume=resume,
            say=_parent.send,
        )
    except (FilflError, OSError):
        raise
    except Exception as error:  # it may be of a class that cannot be pickled
        raise RuntimeError(f"{run.label}: {type(error).__name__}: {error}") from error
    return RunProgress.of(run.directory, result.records[-1], finished=True)
