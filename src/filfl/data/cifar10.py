"""CIFAR-10: colour images in ten classes, in the three formats in which it is distributed.

Krizhevsky: Learning Multiple Layers of Features from Tiny Images. 2009.
"""

import pickle
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from filfl.config.schema import Count, Share
from filfl.data.base import Partitioned
from filfl.data.federated import FederatedData
from filfl.data.sources import Arrays, cached, find_source, not_in_test, read_npz
from filfl.errors import DataError
from filfl.rng import SETUP, stream

EXPECTED = (
    "the folder cifar-10-batches-py or cifar-10-batches-bin (from https://www.cs.toronto.edu/~kriz/cifar.html, "
    "unpacked), or an .npz with x_train, y_train, x_test and y_test"
)
FOLDERS = ("cifar-10-batches-py", "cifar-10-batches-bin")
NAMES = ("cifar10_subset_10k_2k.npz", *FOLDERS)
"""The files and folders that are looked for in the folder FILFL_DATA, in this order."""
BATCHES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
CLASSES = 10
PIXELS = 3 * 32 * 32
RECORD = 1 + PIXELS
"""Bytes per image in the binary format: the label, then red, green and blue."""
MEAN = np.array([0.4914, 0.4822, 0.4465])[:, None, None]
STD = np.array([0.2470, 0.2435, 0.2616])[:, None, None]
"""Mean and standard deviation of the red, green and blue of the training images, divided by 255."""


@dataclass(frozen=True, kw_only=True)
class Cifar10(Partitioned):
    """CIFAR-10: 50,000 training and 10,000 test images of 3 x 32 x 32 in 10 classes, from your own copy."""

    path: str | None = None
    """cifar-10-batches-py, cifar-10-batches-bin, or an .npz. Unset: cifar10_subset_10k_2k.npz, or one of these
    two folders, in the folder FILFL_DATA."""
    clients: Count = 200
    filtering: Share = 0.01

    def check_source(self) -> None:
        self._source()

    def _source(self) -> Path:
        return find_source(self.path, NAMES, EXPECTED)

    def read(self, seed: int) -> FederatedData:
        source = self._source()
        x, y, test_x, test_y = read_cifar10(source)
        kept = np.flatnonzero(not_in_test(x, test_x, source.name))
        order = stream(seed, SETUP, "held-out").permutation(kept)
        data = self.split(x, y, order, (test_x, test_y), seed, scale=1 / (255 * STD), shift=-MEAN / STD)
        # The number of outputs must not depend on whether a subset has images of the last class.
        return replace(data, classes=CLASSES)


def read_cifar10(path: Path) -> list[NDArray[Any]]:
    """Read x_train, y_train, x_test and y_test from a folder of batches, from its parent folder, or from an .npz."""
    if path.suffix == ".npz" and path.is_file():
        x, y, test_x, test_y = read_npz(path, ("x_train", "y_train", "x_test", "y_test")).values()
        train = _checked(x, y, f"{path}, x_train and y_train")
        return [*train, *_checked(test_x, test_y, f"{path}, x_test and y_test")]
    if not path.is_dir():
        raise DataError(f"{path} is neither a folder nor an .npz; unpack it, and set data.path to the folder")
    for folder in (path, *(path / name for name in FOLDERS)):
        if files := _batch_files(folder, ""):
            # Measured on the whole of CIFAR-10: 1.7 s to parse and cache, 0.2 s to read from the cache.
            return list(cached("cifar10-2", files, lambda: _read_batches(files, read_pickle)).values())
        if files := _batch_files(folder, ".bin"):
            return list(_read_batches(files, _read_binary).values())
    raise DataError(
        f"{path} has no CIFAR-10 batches; set data.path to the folder with data_batch_1 to data_batch_5 and "
        "test_batch, or with the same files ending in .bin"
    )


def _batch_files(folder: Path, ending: str) -> list[Path]:
    """The six batch files of a folder, or an empty list if it has none of them."""
    files = [folder / f"{name}{ending}" for name in BATCHES]
    missing = [file.name for file in files if not file.is_file()]
    if missing and len(missing) < len(files):
        raise DataError(f"{folder} lacks {', '.join(missing)}; unpack CIFAR-10 again, it has six batches")
    return [] if missing else files


def _read_batches(files: list[Path], read: Callable[[Path], tuple[Any, Any]]) -> Arrays:
    """One array per split. Every batch is checked on its own, so that an error names its file."""
    batches = [_checked(*read(file), str(file)) for file in files]
    x, y = (np.concatenate(part) for part in zip(*batches[:-1], strict=True))
    return {"x_train": x, "y_train": y, "x_test": batches[-1][0], "y_test": batches[-1][1]}


def _read_binary(file: Path) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    try:
        content = np.fromfile(file, dtype=np.uint8)
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error.strerror}") from None
    if len(content) % RECORD:
        raise DataError(
            f"{file} is truncated: its {len(content)} bytes are not a multiple of {RECORD}, the size of an image; "
            "unpack CIFAR-10 again"
        )
    records = content.reshape(-1, RECORD)
    return records[:, 1:], records[:, 0]


def _checked(x: Any, y: Any, where: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Check images and labels, and convert them to uint8 [n, 3, 32, 32] and int64 [n]."""
    x, y = np.asarray(x), np.asarray(y)
    if x.dtype != np.uint8:
        raise DataError(f"{where}: images must be uint8, with values from 0 to 255 (got {x.dtype})")
    if x.shape[1:] == (PIXELS,):
        x = x.reshape(-1, 3, 32, 32)
    elif x.shape[1:] == (32, 32, 3):
        x = x.transpose(0, 3, 1, 2)
    if x.shape[1:] != (3, 32, 32):
        raise DataError(f"{where}: images must have 32 x 32 pixels in 3 colours (got shape {list(x.shape[1:])})")
    if len(x) == 0:
        raise DataError(f"{where}: there are no images")
    if y.shape == (len(x), 1):
        y = y[:, 0]
    if y.shape != (len(x),) or y.dtype.kind not in "iu":
        raise DataError(f"{where}: labels must be {len(x)} integers, one per image (got {y.dtype}{list(y.shape)})")
    if len(wrong := y[(y < 0) | (y >= CLASSES)]):
        raise DataError(f"{where}: labels must be from 0 to {CLASSES - 1} (got {wrong[0]}); this is not CIFAR-10")
    return np.ascontiguousarray(x), y.astype(np.int64)


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


NUMPY_CORES = ("numpy.core", "numpy._core")
ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _DType,
    # Protocol 2 has no bytes: Python 3 writes them as latin1 text.
    ("_codecs", "encode"): lambda text, encoding: text.encode("latin1"),
    **{(f"{core}.multiarray", "_reconstruct"): lambda *_: _Array() for core in NUMPY_CORES},
    # Protocol 5.
    **{(f"{core}.numeric", "_frombuffer"): lambda *state: _Array(_bytes(*state[:4])) for core in NUMPY_CORES},
}
"""The names that a pickle may use, and what they are replaced by."""


class _ArraysOnly(pickle.Unpickler):
    """An unpickler that builds only plain containers and byte arrays.

    A pickle can call any function. Only the names that numpy arrays need are allowed, and each of them is replaced by a
    class or function of this module, so that not even numpy's code runs on unchecked content.
    """

    def find_class(self, module: str, name: str) -> Any:
        try:
            return ALLOWED[module, name]
        except KeyError:
            raise _Forbidden(f"{module}.{name}") from None
