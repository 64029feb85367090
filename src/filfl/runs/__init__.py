"""Run directories (config, records, times, checkpoints) and the loop over the rounds."""

from filfl.runs.callbacks import STOP, Callback, RunCallback, RunStart, Stop, open_callbacks, with_seconds
from filfl.runs.loop import RunLog, run_rounds
from filfl.runs.reader import Run, read_run
from filfl.runs.stopping import EarlyStopping
from filfl.runs.store import RunStore, finished, open_store

__all__ = [
    "STOP",
    "Callback",
    "EarlyStopping",
    "Run",
    "RunCallback",
    "RunLog",
    "RunStart",
    "RunStore",
    "Stop",
    "finished",
    "open_callbacks",
    "open_store",
    "read_run",
    "run_rounds",
    "with_seconds",
]
