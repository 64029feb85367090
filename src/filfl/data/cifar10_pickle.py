"""Reads CIFAR-10's pickled batches without executing code from the file.

A pickle can call any function. This reader allows only the names that numpy arrays need, and replaces each of them by
a class of its own, so that not even numpy's code runs on unchecked content.
"""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from filfl.errors import DataError


def read_pickle(file: Path) -> tuple[NDArray[np.uint8], list[int]]:
    """Images [n, 3072] and labels of one batch: a dict with b"data" and b"labels"."""
    try:
        with file.open("rb") as opened:
            batch = _ArraysOnly(opened, encoding="bytes").load()
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error.strerror}") from None
    except _Forbidden as error:
        raise DataError(
            f"{file} calls {error}, which a CIFAR-10 batch does not need; nothing of it was executed. "
            "Download the files from https://www.cs.toronto.edu/~kriz/cifar.html"
        ) from None
    except Exception as error:  # a damaged pickle can raise any exception
        raise DataError(f"{file} is not a complete pickle of CIFAR-10 ({error}); unpack CIFAR-10 again") from None
    if not isinstance(batch, dict) or not {b"data", b"labels"} <= batch.keys():
        raise DataError(f'{file} is not a batch of CIFAR-10: it must be a dict with b"data" and b"labels"')
    data, labels = batch[b"data"], batch[b"labels"]
    if not isinstance(data, _Array) or data.values is None:
        raise DataError(f'{file}: b"data" must be an array (got {type(data).__name__})')
    if not isinstance(labels, list) or not all(type(label) is int for label in labels):
        raise DataError(f'{file}: b"labels" must be a list of integers')
    return data.values, labels


class _Forbidden(Exception):
    """The pickle names a function or class that is not allowed."""


class _DType:
    """Replaces numpy.dtype: keeps the name of the type, such as u1."""

    def __init__(self, name: str | bytes, *_: object) -> None:
        self.name = name.decode() if isinstance(name, bytes) else name

    def __setstate__(self, state: object) -> None:
        """Ignore the state: it holds the byte order, which single bytes do not have."""


class _Array:
    """Replaces numpy.ndarray: bytes with a shape."""

    def __init__(self, values: NDArray[np.uint8] | None = None) -> None:
        self.values = values

    def __setstate__(self, state: tuple[object, tuple[int, ...], _DType, bool, bytes]) -> None:
        _, shape, dtype, column_major, content = state
        self.values = _bytes(content, dtype, shape, "F" if column_major else "C")


def _bytes(content: bytes, dtype: _DType, shape: tuple[int, ...], order: Any) -> NDArray[np.uint8]:
    if dtype.name not in ("u1", "uint8"):
        raise ValueError(f"images must be uint8, with values from 0 to 255, got {dtype.name}")
    return np.frombuffer(content, dtype=np.uint8).reshape(shape, order="F" if order == "F" else "C")


ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _DType,
    # Protocol 2 has no bytes: Python 3 writes them as latin1 text.
    ("_codecs", "encode"): lambda text, encoding: text.encode("latin1"),
}
for core in ("numpy.core", "numpy._core"):
    ALLOWED[f"{core}.multiarray", "_reconstruct"] = lambda *_: _Array()
    ALLOWED[f"{core}.numeric", "_frombuffer"] = lambda *state: _Array(_bytes(*state[:4]))  # protocol 5
"""The names that a pickle may use, and what they are replaced by."""


class _ArraysOnly(pickle.Unpickler):
    """An unpickler that builds only plain containers and byte arrays."""

    def find_class(self, module: str, name: str) -> Any:
        try:
            return ALLOWED[module, name]
        except KeyError:
            raise _Forbidden(f"{module}.{name}") from None
