"""Atomic writing of files, and the JSON and hashes of the run store."""

import contextlib
import errno
import hashlib
import json
import os
import stat
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


def file_sha256(path: Path) -> str:
    with regular(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def regular(path: Path) -> Path:
    """The path of a file that is read to its end. A pipe or a device, at which reading can wait or never end, is
    refused with an `OSError`, also behind a link."""
    if not (path.is_file() or path.is_dir()) and path.exists():
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return path


def write_atomic(path: Path, data: bytes | Iterable[bytes]) -> None:
    """Write a file atomically: to a temporary file, which is flushed to the disk and then renamed.

    Only a regular file is replaced. A device or a pipe is written to, and a link stays a link.
    """
    pieces = [data] if isinstance(data, bytes) else data
    try:
        if _is_special(path):
            _write_in_place(path, pieces)
        else:
            _replace(Path(os.path.realpath(path)), pieces)
    except OSError as error:
        raise cannot_write(path, error) from None


def _is_special(path: Path) -> bool:
    """Whether there is something at this path that is not a regular file."""
    try:
        return not stat.S_ISREG(path.stat().st_mode)
    except FileNotFoundError:
        return False


def _write_in_place(path: Path, pieces: Iterable[bytes]) -> None:
    handle = os.open(path, os.O_WRONLY | getattr(os, "O_NONBLOCK", 0))  # do not wait for the reader of a pipe
    with os.fdopen(handle, "wb") as file:
        os.set_blocking(handle, True)
        file.writelines(pieces)


def _replace(path: Path, pieces: Iterable[bytes]) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.filfl-tmp")
    try:
        with temporary.open("wb") as file:
            file.writelines(pieces)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        _sync_folder(path.parent)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def move_aside(path: Path, why: str) -> Path:
    """Rename a file or folder to NAME.WHY-1, or the next free number. Returns the new path."""
    path = path if path.name not in ("", "..") else path.resolve()
    n = 1
    while os.path.lexists(aside := path.with_name(f"{path.name}.{why}-{n}")):
        n += 1
    try:
        path.rename(aside)
        _sync_folder(path.parent)
    except OSError as error:
        raise RunError(f"{path} cannot be moved to {aside.name}: {error.strerror}") from None
    return aside


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
