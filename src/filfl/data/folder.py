"""Arrays in a folder, each in a file of its own, that are mapped into memory instead of read.

<name>.npy    one array each
data.json     the rest, and of every file its size, its time of change and the hash of its array

A folder is written under a temporary name and then renamed, so it is there whole or not at all.
"""

import contextlib
import errno
import hashlib
import json
import mmap
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from filfl.errors import DataError

FORMAT = 1
FACTS = "data.json"


class Mapped(np.memmap[Any, np.dtype[Any]]):
    """An array in a file, with the hash that it had when it was written. What is cut out of it has no such hash."""

    digest: str | None = None
    _mmap: mmap.mmap

    def read_at_random(self) -> None:
        """Let the system read only the pages that are asked for, where it listens.

        A system that reads megabytes ahead of every client takes a hundred times as long for a round.
        """
        if hasattr(mmap, "MADV_RANDOM"):
            self._mmap.madvise(mmap.MADV_RANDOM)


def digest_of(array: NDArray[Any]) -> str:
    """A hash of an array's bytes; that of a mapped one is known without reading it."""
    if isinstance(array, Mapped) and array.digest:
        return array.digest
    return hashlib.blake2b(np.ascontiguousarray(array).data, digest_size=16).hexdigest()


def save_arrays(directory: Path, arrays: Mapping[str, NDArray[Any]], rest: Mapping[str, Any]) -> None:
    """Write the arrays and the rest (what JSON can hold) into a new folder."""
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise DataError(f"{directory} is there already: choose another folder, or remove it")
    temporary = directory.with_name(f".{directory.name}.{os.getpid()}.filfl-tmp")
    try:
        try:
            temporary.mkdir(parents=True)
            files = {name: _write(temporary / f"{name}.npy", array) for name, array in arrays.items()}
            facts = json.dumps({"format": FORMAT, **rest, "arrays": files}, indent=2)
            (temporary / FACTS).write_text(facts + "\n", encoding="utf-8")
            with contextlib.suppress(FileNotFoundError):
                directory.rmdir()  # an empty one
            temporary.rename(directory)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
    except OSError as error:
        raise DataError(f"{directory} cannot be written: {error.strerror}") from None


def open_arrays(directory: Path, names: Iterable[str]) -> tuple[dict[str, Mapped], dict[str, Any]]:
    """The arrays of a folder, mapped, and the rest. Nobody can write to the files through them."""
    path = directory / FACTS
    try:
        facts = json.loads(path.read_bytes())
        found, files = facts["format"], facts["arrays"]
    except OSError as error:
        raise DataError(
            f"{directory} holds no data that FederatedData.save wrote: {path.name}: {error.strerror}"
        ) from None
    except (ValueError, KeyError, TypeError):
        raise DataError(f"{path} is damaged: save the data again") from None
    if found != FORMAT:
        raise DataError(f"{path} has format {found}, this version reads {FORMAT}")
    return {name: _open(directory / f"{name}.npy", files) for name in names}, facts


def _write(path: Path, array: NDArray[Any]) -> dict[str, Any]:
    with path.open("wb") as file:
        np.save(file, array, allow_pickle=False)
        file.flush()
        os.fsync(file.fileno())
    status = path.stat()
    return {"size": status.st_size, "changed": status.st_mtime_ns, "digest": digest_of(array)}


def _open(path: Path, files: Any) -> Mapped:
    try:
        status, noted = path.stat(), files[path.stem]
        size, changed, digest = noted["size"], noted["changed"], noted["digest"]
        if status.st_size != size:
            raise DataError(
                f"{path} was changed or cut off ({status.st_size:,} bytes instead of {size:,}): save the data again"
            )
        mapped = _map(path).view(Mapped)
        if status.st_mtime_ns != changed and digest_of(mapped) != digest:  # copied, or changed
            raise DataError(f"{path} was changed since it was saved: save the data again")
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} or its entry in {FACTS} is damaged ({error}): save the data again") from None
    mapped.flags.writeable = False
    mapped.digest = digest
    return mapped


def _map(path: Path) -> np.memmap[Any, np.dtype[Any]]:
    """The array of a file; what a careless layer writes to it stays in this process.

    For that the system may want to promise as much memory as the file is long. Where it cannot, the pages are
    for reading only.
    """
    try:
        return np.lib.format.open_memmap(path, mode="c")
    except OSError as error:
        if error.errno != errno.ENOMEM:
            raise
        return np.lib.format.open_memmap(path, mode="r")
