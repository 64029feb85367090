"""Callbacks that log a run to TensorBoard, MLflow or Weights & Biases. Each library is an optional extra."""

from collections.abc import Sequence
from pathlib import Path

from filfl.config.schema import unknown_name
from filfl.errors import ConfigError
from filfl.trackers.base import Tracker
from filfl.trackers.mlflow import MLflow
from filfl.trackers.tensorboard import TensorBoard
from filfl.trackers.wandb import WandB

TRACKERS: dict[str, type[Tracker]] = {tracker.name: tracker for tracker in (TensorBoard, MLflow, WandB)}

__all__ = ["TRACKERS", "MLflow", "TensorBoard", "Tracker", "WandB", "make_trackers"]


def make_trackers(names: Sequence[str], comparison: Path | None = None) -> tuple[Tracker, ...]:
    """Trackers by name, for one run or for all runs in the directory of a comparison."""
    for name in names:
        if name not in TRACKERS:
            raise ConfigError(unknown_name("--track", name, TRACKERS))
    kinds = [TRACKERS[name] for name in dict.fromkeys(names)]
    return tuple(kind(comparison if kind.holds_many else None) for kind in kinds)
