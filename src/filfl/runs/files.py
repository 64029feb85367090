"""Atomic writing of files, and the JSON and hashes of the run store."""

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
"""The pattern of temporary file names."""


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def to_json(value: Any) -> str:
    """One line of JSON; equal values give equal bytes. NaN and infinity are not JSON, so callers pass None."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def write_atomic(path: Path, data: bytes | Iterable[bytes]) -> None:
    """Write a file atomically: to a temporary file, which is flushed to the disk and then renamed."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.filfl-tmp")
    try:
        with temporary.open("wb") as file:
            file.writelines([data] if isinstance(data, bytes) else data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        raise cannot_write(path, error) from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def cannot_write(path: Path, error: OSError) -> RunError:
    """The error for a path that cannot be written. If the disk is full, it tells how to continue."""
    full = error.errno == errno.ENOSPC
    hint = "; free some space, then run the command again (filfl run and filfl compare: with --resume)" if full else ""
    return RunError(f"{path} cannot be written: {error.strerror}{hint}")


def _sync_folder(folder: Path) -> None:
    """Flush a rename in this folder to the disk, where the system supports it."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
