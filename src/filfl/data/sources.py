"""Where a dataset's files are, and what is said about what had to be left out."""

import logging
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from filfl.errors import DataError
from filfl.rng import SETUP, stream

log = logging.getLogger("filfl")


def find_source(path: str | None, default: str, what: str) -> Path:
    """The files of a dataset: `data.path`, or `default` in the folder that FILFL_DATA names."""
    if path is not None:
        source = Path(path).expanduser()
        if not source.exists():
            raise DataError(f"data.path: there is no {source}; it must be {what}")
        return source
    folder = os.environ.get("FILFL_DATA")
    if folder and (Path(folder) / default).exists():
        return Path(folder) / default
    raise DataError(f"data.path is not set: it must be {what}")


def say_left_out(count: int, sentence: str) -> None:
    """Say what was left out of a source, and how often; nothing where it never happened."""
    if count:
        log.warning("%d %s", count, sentence)


def draw_clients(total: int, wanted: int | None, seed: int) -> NDArray[np.int64]:
    """Which of the source's clients take part, in ascending order: all, or `wanted` drawn by seed."""
    if wanted is None:
        return np.arange(total)
    if wanted > total:
        raise DataError(f"data.clients must be between 1 and the {total} clients of the source (got {wanted})")
    return np.sort(stream(seed, SETUP, "clients").permutation(total)[:wanted])


def not_tested(x: NDArray[Any], test_x: NDArray[Any], source: str) -> NDArray[np.bool_]:
    """Which samples are no copies of a test sample; how many are is said."""
    tests = {row.tobytes() for row in test_x}
    kept = np.fromiter((row.tobytes() not in tests for row in x), dtype=bool, count=len(x))
    say_left_out(int((~kept).sum()), f"training samples of {source} are test samples too and were dropped")
    return kept
