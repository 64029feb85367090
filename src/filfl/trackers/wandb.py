"""Weights & Biases: offline, unless WANDB_MODE is set."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from filfl.runs.callbacks import RunStart
from filfl.trackers.base import Session, Tracker, parameters, run_name

if TYPE_CHECKING:
    from wandb import Run

PROJECT = "filfl"
"""The W&B project, unless WANDB_PROJECT is set."""


class WandB(Tracker):
    """Logs to an offline run under `wandb/`; `wandb sync` uploads it. WANDB_MODE=online logs to the server directly."""

    name = "wandb"
    needs = ("wandb",)
    holds_many = True

    def __post_init__(self) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        super().__post_init__()

    def open(self, run: RunStart, id: str | None) -> Session:
        import wandb

        directory = self.directory_of(run)
        directory.mkdir(parents=True, exist_ok=True)
        opened = wandb.init(
            mode=os.environ.get("WANDB_MODE", "offline"),
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            dir=directory,
            id=id,
            resume="allow" if id else None,
            name=run_name(run.config),
            group=run.config.name,
            config=parameters(run.config),
            reinit="create_new",
            settings=wandb.Settings(silent=True, console="off"),
        )
        if opened.offline:
            # An offline run cannot be continued. All rounds are written again, and the earlier files with the same id
            # are removed, because `wandb sync` keeps only one of them.
            for old in (directory / "wandb").glob(f"offline-run-*-{opened.id}"):
                if old != Path(opened.dir).parent:
                    shutil.rmtree(old)
        return _Run(opened)


class _Run:
    def __init__(self, run: "Run") -> None:
        self._run, self.id = run, run.id
        self._first = run.step
        """The server already has the steps before this one, when a run is resumed."""

    def write(self, t: int, metrics: Mapping[str, float]) -> None:
        if t >= self._first:
            self._run.log(dict(metrics), step=t, commit=True)

    def close(self, finished: bool) -> None:
        self._run.finish(exit_code=0 if finished else 1)
