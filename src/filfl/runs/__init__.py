"""Run directories (config, records, times, checkpoints) and the loop over the rounds."""

from filfl.runs.callbacks import Callback, RunCallback, RunStart, open_callbacks, with_seconds
from filfl.runs.loop import run_rounds
from filfl.runs.reader import Run, read_run
from filfl.runs.store import RunStore, finished, open_store

__all__ = [
    "Callback",
    "Run",
    "RunCallback",
    "RunStart",
    "RunStore",
    "finished",
    "open_callbacks",
    "open_store",
    "read_run",
    "run_rounds",
    "with_seconds",
]
