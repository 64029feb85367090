"""Reads .npz files that may be damaged or made to do harm: nothing is unpickled, and nothing is allocated or
decompressed before the sizes that the file claims are checked."""

import math
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from filfl.data.limits import refuse_bomb
from filfl.errors import DataError

SUFFIX = ".npy"
HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
"""The readers of headers. Version 3 exists for structured arrays only."""


class _Damaged(Exception):
    """Content that is not a plain array. The message is the reason."""


@contextmanager
def open_npz(path: Path, where: str) -> Iterator["Npz"]:
    """An .npz file. Whatever it contains, no other exception than `DataError` is raised in the block.

    where: names the file in the errors.
    """
    try:
        with path.open("rb") as file, zipfile.ZipFile(file) as archive:
            yield Npz(path, where, archive)
    except DataError:
        raise
    except OSError as error:
        raise DataError(f"{where} cannot be read as an .npz of plain arrays: {error.strerror or error}") from None
    except Exception as error:  # a damaged archive can raise any exception
        reason = str(error) or type(error).__name__
        raise DataError(f"{where} cannot be read as an .npz of plain arrays: {reason}") from None


class Npz:
    """The arrays of an open .npz file."""

    def __init__(self, path: Path, where: str, archive: zipfile.ZipFile) -> None:
        self._path = path
        self._where = where
        self._archive = archive
        self.names = [name.removesuffix(SUFFIX) for name in archive.namelist() if name.endswith(SUFFIX)]

    def read(self, names: Sequence[str]) -> dict[str, NDArray[Any]]:
        """The arrays with these names."""
        members = [self._archive.getinfo(f"{name}{SUFFIX}") for name in names]
        refuse_bomb(self._where, sum(member.file_size for member in members), self._path.stat().st_size)
        return {name: self._array(name, member) for name, member in zip(names, members, strict=True)}

    def _array(self, name: str, member: zipfile.ZipInfo) -> NDArray[Any]:
        with self._archive.open(member) as file:
            _check_header(name, file, member.file_size)
        with self._archive.open(member) as file:
            return np.asarray(npy.read_array(file, allow_pickle=False))


def _check_header(name: str, file: IO[bytes], size: int) -> None:
    """Refuse an array whose header does not match the size of its file, before memory is reserved for it."""
    version = npy.read_magic(file)
    if version not in HEADERS:
        raise _Damaged(f"array {name} has the unknown version {version[0]}.{version[1]}")
    shape, _, dtype = HEADERS[version](file)
    if dtype.names or dtype.subdtype or dtype.hasobject or dtype.kind not in "biufcSUmM":
        raise _Damaged(f"array {name} must have plain values (got {dtype})")
    claimed, present = math.prod(shape) * dtype.itemsize, size - file.tell()
    if min(shape, default=0) < 0 or claimed != present:
        raise _Damaged(f"array {name} of shape {list(shape)} needs {claimed:,} bytes, but its file has {present:,}")
