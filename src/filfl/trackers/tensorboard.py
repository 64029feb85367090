"""TensorBoard: scalars and hyperparameters as event files."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from filfl.runs.callbacks import RunStart
from filfl.trackers.base import Session, Tracker, parameters

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

SHOWN_BESIDE_PARAMETERS = ("test/accuracy", "test/loss")


class TensorBoard(Tracker):
    """Writes event files, which `tensorboard --logdir runs` shows. Every run needs its own directory."""

    name = "tensorboard"
    needs = ("tensorboard",)
    holds_many = False

    def open(self, run: RunStart, id: str | None) -> Session:
        from torch.utils.tensorboard import SummaryWriter
        from torch.utils.tensorboard.summary import hparams

        directory = self.directory_of(run) / "tensorboard" if self.directory is None else Path(self.directory)
        # The last rounds may be missing in earlier event files. With purge_step, TensorBoard ignores these files; all
        # rounds are written again.
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
