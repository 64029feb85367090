"""The run store: config, records, times, checkpoints; and the loop that fills it."""

from filfl.runs.loop import Callback, run_rounds
from filfl.runs.read import Run, read_run
from filfl.runs.store import RunStore, finished, open_store

__all__ = ["Callback", "Run", "RunStore", "finished", "open_store", "read_run", "run_rounds"]
