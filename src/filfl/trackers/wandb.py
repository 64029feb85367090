"""Weights & Biases: a run on the disk, unless WANDB_MODE says otherwise."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from filfl.runs.follow import Beginning
from filfl.trackers.base import Session, Tracker, parameters, run_name

if TYPE_CHECKING:
    from wandb import Run

PROJECT = "filfl"
"""Where WANDB_PROJECT is not set."""


class WandB(Tracker):
    """An offline run under `wandb/`, to be sent with `wandb sync`; WANDB_MODE=online sends it at once."""

    name = "wandb"
    needs = ("wandb",)
    holds_many = True

    def __post_init__(self) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        super().__post_init__()

    def open(self, run: Beginning, known_as: str | None) -> Session:
        import wandb

        place = self.place(run)
        place.mkdir(parents=True, exist_ok=True)
        opened = wandb.init(
            mode=os.environ.get("WANDB_MODE", "offline"),
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            dir=place,
            id=known_as,
            resume="allow" if known_as else None,
            name=run_name(run.config),
            group=run.config.name,
            config=parameters(run.config),
            reinit="create_new",
            settings=wandb.Settings(silent=True, console="off"),
        )
        if opened.offline:
            # An offline run cannot be gone on with: it is written again, and of two with one id `wandb sync` keeps one.
            for old in (place / "wandb").glob(f"offline-run-*-{opened.id}"):
                if old != Path(opened.dir).parent:
                    shutil.rmtree(old)
        return _Run(opened)


class _Run:
    def __init__(self, run: "Run") -> None:
        self._run, self.id = run, run.id
        self._first = run.step
        """What the server has of a run that is gone on with ends before this step."""

    def write(self, t: int, metrics: Mapping[str, float]) -> None:
        if t >= self._first:
            self._run.log(dict(metrics), step=t, commit=True)

    def close(self, finished: bool) -> None:
        self._run.finish(exit_code=0 if finished else 1)
