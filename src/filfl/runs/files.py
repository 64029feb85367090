"""Files that are either there, whole, or not there."""

import contextlib
import errno
import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from filfl.errors import RunError

TEMPORARY = ".*.filfl-tmp"
"""The names of files that are being written."""


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def to_json(value: Any) -> str:
    """One line of JSON, the same bytes for the same value. NaN and infinity are not JSON: callers pass None."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def write_whole(path: Path, data: bytes | Iterable[bytes]) -> None:
    """Write to a temporary file beside, flush it to the disk, and only then give it its name."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.filfl-tmp")
    try:
        try:
            with temporary.open("wb") as file:
                file.writelines([data] if isinstance(data, bytes) else data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        sync_folder(path.parent)
    except OSError as error:
        room = (
            ". Free some space, then start again (run and compare: with --resume)"
            if error.errno == errno.ENOSPC
            else ""
        )
        raise RunError(f"{path} cannot be written: {error.strerror}{room}") from None


def sync_folder(folder: Path) -> None:
    """Make a rename in this folder last through a power cut, where the system can."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
