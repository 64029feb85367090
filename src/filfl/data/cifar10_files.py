"""Reads the three formats in which CIFAR-10 is distributed: pickled batches, binary batches, and an .npz."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from filfl.data.cache import Arrays, cached
from filfl.data.cifar10_pickle import read_pickle
from filfl.data.sources import read_npz
from filfl.errors import DataError

CLASSES = 10
PIXELS = 3 * 32 * 32
RECORD = 1 + PIXELS
"""Bytes per image in the binary format: the label, then red, green and blue."""
FOLDERS = ("cifar-10-batches-py", "cifar-10-batches-bin")
BATCHES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")

Batch = tuple[NDArray[np.uint8], NDArray[np.int64]]


@dataclass(frozen=True)
class Cifar10Images:
    """Images as uint8 [n, 3, 32, 32], with labels from 0 to 9."""

    train: Batch
    test: Batch


def read_cifar10(path: Path) -> Cifar10Images:
    """Read CIFAR-10 from a folder of batches, from its parent folder, or from an .npz."""
    if path.is_dir():
        return _read_folder(path)
    if path.suffix == ".npz":
        return _checked(read_npz(path, ("x_train", "y_train", "x_test", "y_test")), path)
    raise DataError(f"{path} is neither a folder nor an .npz; unpack it, and set data.path to the folder")


def _read_folder(path: Path) -> Cifar10Images:
    for folder in (path, *(path / name for name in FOLDERS)):
        if files := _batch_files(folder, ""):
            # Measured on the whole of CIFAR-10: 1.7 s to parse and cache, 0.2 s to read from the cache.
            return _checked(cached("cifar10-1", files, lambda: _joined(files, read_pickle)), folder)
        if files := _batch_files(folder, ".bin"):
            return _checked(_joined(files, _read_binary), folder)
    raise DataError(
        f"{path} has no CIFAR-10 batches; set data.path to the folder with data_batch_1 to data_batch_5 and "
        "test_batch, or with the same files ending in .bin"
    )


def _batch_files(folder: Path, ending: str) -> list[Path]:
    """The six batch files of a folder, or an empty list if it has none of them."""
    files = [folder / f"{name}{ending}" for name in BATCHES]
    missing = [file.name for file in files if not file.is_file()]
    if len(missing) == len(files):
        return []
    if missing:
        raise DataError(f"{folder} lacks {', '.join(missing)}; unpack CIFAR-10 again, it has six batches")
    return files


def _joined(files: list[Path], read: Callable[[Path], tuple[Any, Any]]) -> Arrays:
    """One array per split. Every batch is checked on its own, so that an error names its file."""
    batches = [_images(*read(file), str(file)) for file in files]
    x, y = (np.concatenate(part) for part in zip(*batches[:-1], strict=True))
    return {"x_train": x, "y_train": y, "x_test": batches[-1][0], "y_test": batches[-1][1]}


def _read_binary(file: Path) -> tuple[Any, Any]:
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


def _checked(arrays: Arrays, where: Path) -> Cifar10Images:
    return Cifar10Images(
        train=_images(arrays["x_train"], arrays["y_train"], f"{where}, x_train and y_train"),
        test=_images(arrays["x_test"], arrays["y_test"], f"{where}, x_test and y_test"),
    )


def _images(x: Any, y: Any, where: str) -> Batch:
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
