"""How much memory a file may fill that is small on the disk."""

import bz2
import gzip
import lzma
import math
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from filfl.errors import DataError

VARIABLE = "FILFL_MAX_GB"
"""The environment variable with the limit."""
DEFAULT_GB = 4.0
CHUNK = 1 << 20


def max_bytes() -> float:
    """How many bytes a file may decompress to: the environment variable FILFL_MAX_GB, by default 4 GB."""
    given = os.environ.get(VARIABLE)
    if not given:
        return DEFAULT_GB * 1e9
    try:
        limit = float(given)
    except ValueError:
        limit = math.nan
    if not limit > 0:
        raise DataError(f"the environment variable {VARIABLE} must be a number of GB above 0 (got {given!r})")
    return limit * 1e9


def refuse_bomb(where: str, size: float, on_disk: int) -> None:
    """Refuse a file that decompresses to more than the limit. A file that is as large on the disk is not refused.

    where: names the file in the error. size: in memory, in bytes.
    """
    if size > on_disk and size > (limit := max_bytes()):
        raise DataError(
            f"{where} has {on_disk / 1e6:,.1f} MB on the disk and decompresses to more than {limit / 1e9:g} GB; if you "
            f"trust it, set the environment variable {VARIABLE} to a larger number of GB"
        )


def _only_member(path: Path) -> IO[bytes]:
    with zipfile.ZipFile(path) as archive:
        return archive.open(archive.namelist()[0])


OPENERS: dict[str, Callable[[Path], Any]] = {
    ".gz": gzip.GzipFile,
    ".bz2": bz2.BZ2File,
    ".xz": lzma.LZMAFile,
    ".zip": _only_member,
}
"""How compressed files are opened, by their ending."""


def refuse_compressed_bomb(path: Path) -> None:
    """Decompress a file piece by piece, without keeping it, and refuse it if it is longer than the limit."""
    if path.suffix.lower() not in OPENERS:
        return
    size, on_disk = 0, path.stat().st_size
    with OPENERS[path.suffix.lower()](path) as file:
        while piece := file.read(CHUNK):
            size += len(piece)
            refuse_bomb(str(path), size, on_disk)
