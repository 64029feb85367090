"""CIFAR-10's pickled batches, read without running anything that a pickle may name.

A pickle can call any function. This reader knows the few names that arrays need, and gives each a stand-in of its
own: not even numpy's code runs on what the file says before it is checked.
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
            f"{file} wants to call {error}, which no CIFAR-10 batch needs: nothing of it was run. "
            "Take the files from https://www.cs.toronto.edu/~kriz/cifar.html"
        ) from None
    except Exception as error:  # a broken pickle raises whatever its bytes happen to say
        raise DataError(f"{file} is not a whole pickle of CIFAR-10 ({error}): unpack CIFAR-10 again") from None
    if not isinstance(batch, dict) or not {b"data", b"labels"} <= batch.keys():
        raise DataError(f'{file} is not a batch of CIFAR-10: it must be a dict with b"data" and b"labels"')
    data, labels = batch[b"data"], batch[b"labels"]
    if not isinstance(data, _Array) or data.values is None:
        raise DataError(f'{file}: b"data" must be an array (got {type(data).__name__})')
    if not isinstance(labels, list) or not all(type(label) is int for label in labels):
        raise DataError(f'{file}: b"labels" must be a list of whole numbers')
    return data.values, labels


class _Forbidden(Exception):
    """A name that this reader does not know."""


class _Kind:
    """Stands for numpy.dtype: keeps the name of the kind, such as u1, and no more."""

    def __init__(self, name: str | bytes, *_: object) -> None:
        self.name = name.decode() if isinstance(name, bytes) else name

    def __setstate__(self, state: object) -> None:
        """Byte order and the like: one byte has none."""


class _Array:
    """Stands for numpy.ndarray: bytes with a shape."""

    values: NDArray[np.uint8] | None = None

    def __setstate__(self, state: tuple[object, tuple[int, ...], _Kind, bool, bytes]) -> None:
        _, shape, kind, columns_first, content = state
        self.values = _bytes(content, kind, shape, "F" if columns_first else "C")


def _bytes(content: bytes, kind: _Kind, shape: tuple[int, ...], order: Any) -> NDArray[np.uint8]:
    if kind.name not in ("u1", "uint8"):
        raise ValueError(f"its images are {kind.name}, and must be bytes from 0 to 255, u1")
    return np.frombuffer(content, dtype=np.uint8).reshape(shape, order="F" if order == "F" else "C")


def _from_buffer(content: bytes, kind: _Kind, shape: tuple[int, ...], order: Any, *_: object) -> _Array:
    array = _Array()
    array.values = _bytes(content, kind, shape, order)
    return array


def _reconstruct(*_: object) -> _Array:
    return _Array()


def _encode(text: str, encoding: str) -> bytes:
    # Protocol 2 has no bytes: Python 3 writes them as text in latin1.
    return text.encode("latin1")


STAND_INS: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Kind,
    ("_codecs", "encode"): _encode,
    **{(f"numpy.{core}.multiarray", "_reconstruct"): _reconstruct for core in ("core", "_core")},
    **{(f"numpy.{core}.numeric", "_frombuffer"): _from_buffer for core in ("core", "_core")},  # protocol 5
}


class _ArraysOnly(pickle.Unpickler):
    """An unpickler that makes plain containers and byte arrays."""

    def find_class(self, module: str, name: str) -> Any:
        try:
            return STAND_INS[module, name]
        except KeyError:
            raise _Forbidden(f"{module}.{name}") from None
