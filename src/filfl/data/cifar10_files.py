"""The three forms in which CIFAR-10 is passed around: pickled batches, binary batches, and an .npz."""

import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from filfl.data.cache import Arrays, cached
from filfl.data.cifar10_pickle import read_pickle
from filfl.errors import DataError

CLASSES = 10
PIXELS = 3 * 32 * 32
RECORD = 1 + PIXELS
"""Bytes an image in the binary version: its label, then its red, green and blue."""
FOLDERS = ("cifar-10-batches-py", "cifar-10-batches-bin")
BATCHES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")

Batch = tuple[NDArray[np.uint8], NDArray[np.int64]]


@dataclass(frozen=True)
class Cifar10Images:
    """Images as uint8 [n, 3, 32, 32], and labels from 0 to 9."""

    train: Batch
    test: Batch


def read_cifar10(path: Path) -> Cifar10Images:
    """CIFAR-10 from a folder of batches (or the folder around it), or from an .npz."""
    if not path.exists():
        raise DataError(f"there is no {path}: data.path must be a folder of CIFAR-10 batches, or an .npz")
    if path.is_dir():
        return _read_folder(path)
    if path.suffix == ".npz":
        return _checked(_read_npz(path), path)
    raise DataError(f"{path} is neither a folder nor an .npz: unpack it, and set data.path to the folder")


def _read_folder(path: Path) -> Cifar10Images:
    for folder in (path, *(path / name for name in FOLDERS)):
        if files := _batch_files(folder, ""):
            # Measured on the whole of CIFAR-10: 1.7 s to parse and keep, 0.2 s to read what was kept.
            return _checked(cached("cifar10-1", files, lambda: _joined(files, read_pickle)), folder)
        if files := _batch_files(folder, ".bin"):
            return _checked(_joined(files, _read_binary), folder)
    raise DataError(
        f"{path} holds no CIFAR-10: data.path must be the folder with data_batch_1 to data_batch_5 and test_batch, "
        "or the same files with .bin at the end"
    )


def _batch_files(folder: Path, ending: str) -> list[Path]:
    """The six files of a folder; none if it has not a single one of them."""
    files = [folder / f"{name}{ending}" for name in BATCHES]
    missing = [file.name for file in files if not file.is_file()]
    if len(missing) == len(files):
        return []
    if missing:
        raise DataError(f"{folder} lacks {', '.join(missing)}: unpack CIFAR-10 again, it has six batches")
    return files


def _joined(files: list[Path], read: Callable[[Path], tuple[Any, Any]]) -> Arrays:
    """The batches as one array a split, each checked with its own file's name."""
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
            f"{file} is cut off: its {len(content)} bytes are no multiple of the {RECORD} that an image takes; "
            "unpack CIFAR-10 again"
        )
    records = content.reshape(-1, RECORD)
    return records[:, 1:], records[:, 0]


def _read_npz(file: Path) -> Arrays:
    names = ("x_train", "y_train", "x_test", "y_test")
    try:
        # Opened here, because np.load leaves a file open that turns out to be no whole zip.
        with file.open("rb") as opened, np.load(opened, allow_pickle=False) as stored:
            if missing := [name for name in names if name not in stored.files]:
                raise DataError(f"{file} lacks {', '.join(missing)}: it must hold {', '.join(names)}")
            return {name: stored[name] for name in names}
    except (OSError, ValueError, EOFError, TypeError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"{file} cannot be read as an .npz of plain arrays: {error}") from None


def _checked(arrays: Arrays, where: Path) -> Cifar10Images:
    return Cifar10Images(
        train=_images(arrays["x_train"], arrays["y_train"], f"{where}, x_train and y_train"),
        test=_images(arrays["x_test"], arrays["y_test"], f"{where}, x_test and y_test"),
    )


def _images(x: Any, y: Any, where: str) -> Batch:
    """Images and labels in the one form that the rest of filfl sees."""
    x, y = np.asarray(x), np.asarray(y)
    if x.dtype != np.uint8:
        raise DataError(f"{where}: the images must be bytes from 0 to 255, uint8 (got {x.dtype})")
    if x.shape[1:] == (PIXELS,):
        x = x.reshape(-1, 3, 32, 32)
    elif x.shape[1:] == (32, 32, 3):
        x = x.transpose(0, 3, 1, 2)
    if x.shape[1:] != (3, 32, 32):
        raise DataError(f"{where}: an image must be of 32 x 32 pixels in 3 colours (got shape {list(x.shape[1:])})")
    if len(x) == 0:
        raise DataError(f"{where}: there are no images")
    if y.shape == (len(x), 1):
        y = y[:, 0]
    if y.shape != (len(x),) or y.dtype.kind not in "iu":
        raise DataError(
            f"{where}: there must be one whole number a label, {len(x)} of them (got {y.dtype}{list(y.shape)})"
        )
    if len(wrong := y[(y < 0) | (y >= CLASSES)]):
        raise DataError(f"{where}: labels must be from 0 to {CLASSES - 1} (got {wrong[0]}): this is not CIFAR-10")
    return np.ascontiguousarray(x), y.astype(np.int64)
