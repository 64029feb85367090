"""TensorBoard: scalars and hyperparameters as event files."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from filfl.runs.follow import Beginning
from filfl.trackers.base import Session, Tracker, parameters

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

SHOWN_BESIDE_PARAMETERS = ("test/accuracy", "test/loss")


class TensorBoard(Tracker):
    """Event files, to be seen with `tensorboard --logdir runs`. One directory is one run."""

    name = "tensorboard"
    needs = ("tensorboard",)
    holds_many = False

    def open(self, run: Beginning, known_as: str | None) -> Session:
        from torch.utils.tensorboard import SummaryWriter
        from torch.utils.tensorboard.summary import hparams

        directory = self.place(run) / "tensorboard" if self.directory is None else Path(self.directory)
        # What event files of before hold is purged by the reader, and written again: their last rounds may be missing.
        writer = SummaryWriter(str(directory), purge_step=0)
        for summary in hparams(parameters(run.config), dict.fromkeys(SHOWN_BESIDE_PARAMETERS, 0.0)):
            writer.file_writer.add_summary(summary, 0)
        return _Events(writer)


class _Events:
    id = ""

    def __init__(self, writer: "SummaryWriter") -> None:
        self._writer = writer

    def write(self, t: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, t)
        self._writer.flush()

    def close(self, finished: bool) -> None:
        self._writer.close()
