"""A folder of arrays that are memory-mapped instead of read.

<name>.npy    one array each
data.json     the other values; for every file its size, its modification time and the hashes of its header and its
              array; and a hash of all of this

A folder is written under a temporary name and then renamed, so an incomplete one is never visible.
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

FORMAT = 2
METADATA = "data.json"


class Mapped(np.memmap[Any, np.dtype[Any]]):
    """An array in a file, with the hash of its content when it was written. A slice of it has no stored hash."""

    digest: str | None = None
    _mmap: mmap.mmap

    def advise_random_access(self) -> None:
        """Advise the system to read only the requested pages, where it supports that.

        With read-ahead of megabytes per client, a round takes a hundred times as long.
        """
        if hasattr(mmap, "MADV_RANDOM"):
            self._mmap.madvise(mmap.MADV_RANDOM)


def digest_of(array: NDArray[Any]) -> str:
    """A hash of an array's bytes. For a mapped array it is the stored one, so that nothing is read."""
    if isinstance(array, Mapped) and array.digest:
        return array.digest
    return hashlib.blake2b(np.ascontiguousarray(array).data, digest_size=16).hexdigest()


def save_arrays(directory: Path, arrays: Mapping[str, NDArray[Any]], values: Mapping[str, Any]) -> None:
    """Write arrays and other values, which must be JSON, into a new folder."""
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise DataError(f"{directory} already exists; choose another folder, or remove it")
    temporary = directory.with_name(f".{directory.name}.{os.getpid()}.filfl-tmp")
    try:
        temporary.mkdir(parents=True)
        files = {name: _write(temporary / f"{name}.npy", array) for name, array in arrays.items()}
        metadata = {"format": FORMAT, **values, "arrays": files}
        content = json.dumps({**metadata, "digest": metadata_digest(metadata)}, indent=2)
        (temporary / METADATA).write_text(content + "\n", encoding="utf-8")
        with contextlib.suppress(FileNotFoundError):
            directory.rmdir()  # it is empty
        temporary.rename(directory)
    except OSError as error:
        raise DataError(f"{directory} cannot be written: {error.strerror}") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def open_arrays(directory: Path, names: Iterable[str]) -> tuple[dict[str, Mapped], dict[str, Any]]:
    """The mapped arrays of a folder, which are read-only, and the content of data.json."""
    path = directory / METADATA
    if path.exists() and not path.is_file():  # reading a pipe or a device can wait, or never end
        raise DataError(f"{directory} was not written by FederatedData.save: {path.name} is not a file")
    try:
        metadata = json.loads(path.read_bytes())
        found, files, digest = metadata["format"], metadata["arrays"], metadata.pop("digest", None)
    except OSError as error:
        raise DataError(f"{directory} was not written by FederatedData.save: {path.name}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise DataError(f"{path} is damaged; save the data again") from None
    if found != FORMAT:
        raise DataError(f"{path} has format {found}, but this version reads format {FORMAT}; save the data again")
    if digest != metadata_digest(metadata):
        raise DataError(f"{path} was changed after it was saved; save the data again")
    return {name: _open(directory / f"{name}.npy", files) for name in names}, metadata


def metadata_digest(metadata: Mapping[str, Any]) -> str:
    """A hash of the content of data.json, apart from this hash itself."""
    return hashlib.blake2b(json.dumps(metadata, sort_keys=True).encode(), digest_size=16).hexdigest()


def _write(path: Path, array: NDArray[Any]) -> dict[str, Any]:
    with path.open("wb") as file:
        np.save(file, array, allow_pickle=False)
        file.flush()
        os.fsync(file.fileno())
    status = path.stat()
    header = _header_digest(path, length := status.st_size - array.nbytes)
    changed, digest = status.st_mtime_ns, digest_of(array)
    return {"size": status.st_size, "changed": changed, "header": [length, header], "digest": digest}


def _header_digest(path: Path, length: int) -> str:
    """A hash of the first bytes of a file, which say how the others are read: the type, byte order and shape."""
    with path.open("rb") as file:
        return hashlib.blake2b(file.read(length), digest_size=16).hexdigest()


def _open(path: Path, files: Any) -> Mapped:
    try:
        status, entry = path.stat(), files[path.stem]
        size, changed, digest = entry["size"], entry["changed"], entry["digest"]
        length, header = entry["header"]
        if status.st_size != size:
            raise DataError(
                f"{path} was changed or truncated ({status.st_size:,} bytes instead of {size:,}); save the data again"
            )
        if not 0 <= length <= size or _header_digest(path, length) != header:
            raise DataError(f"{path} was changed after it was saved (its header); save the data again")
        try:
            # Copy-on-write, so that an in-place layer does not change the file.
            mapped = np.lib.format.open_memmap(path, mode="c").view(Mapped)
        except OSError as error:
            if error.errno != errno.ENOMEM:
                raise
            # The system may have to reserve as much memory as the file is long. Read-only pages need none.
            mapped = np.lib.format.open_memmap(path, mode="r").view(Mapped)
        if status.st_mtime_ns != changed and digest_of(mapped) != digest:  # copied, or changed
            raise DataError(f"{path} was changed after it was saved; save the data again")
        if mapped.dtype.hasobject or mapped.dtype.names or mapped.nbytes != size - length:
            raise DataError(f"{path} must have plain values (got {mapped.dtype}); save the data again")
    except DataError:
        raise
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None
    except Exception as error:  # a damaged header can raise any exception
        raise DataError(f"{path} or its entry in {METADATA} is damaged ({error}); save the data again") from None
    mapped.flags.writeable = False
    mapped.digest = digest
    return mapped
