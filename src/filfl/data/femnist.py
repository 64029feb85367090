"""FEMNIST: handwritten characters with their writers as clients, and other images in LEAF's format.

Caldas et al.: LEAF: A Benchmark for Federated Settings. 2018.
"""

import zipfile
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from filfl.data.base import Dataset
from filfl.data.cache import Arrays, cached
from filfl.data.federated import FederatedData
from filfl.data.leaf import leaf_files, read_leaf
from filfl.data.sources import draw_clients, find_source, not_tested, say_left_out
from filfl.errors import DataError
from filfl.options import Count, Share

WHAT = "a folder with LEAF's train/*.json and test/*.json, or an .npz with images, labels, writers and split"


@dataclass(frozen=True, kw_only=True)
class Femnist(Dataset):
    """LEAF's FEMNIST: characters by their writers, from LEAF's JSON files or an .npz; also other images like it.

    The global test set is LEAF's own, of the writers that take part. Of each writer's training images `validation` and
    `filtering` are put aside, the latter for the server. A training image that is also a test image is dropped.
    `clients` writers are drawn by seed; unset is all. For images of your own set `classes` and `image` (height, width,
    and channels where there are several, last as in LEAF).
    """

    path: str | None = None
    """LEAF's folder with train/ and test/, or an .npz file. Unset is femnist_leaf_writers.npz in $FILFL_DATA."""
    clients: Count | None = None
    """The number of writers, drawn by seed, with their own test images only. Unset is all of them."""
    classes: Count = 62
    """The number of classes. Labels must be below it."""
    image: tuple[Count, ...] = (28, 28)
    """Height and width of an image and, if there are several, the number of channels."""
    validation: Share = 0.2
    """The share of each writer's training images that it validates on; 0 is none."""
    filtering: Share = 0.05
    """The share of each writer's training images that goes to the server's filtering set; 0 leaves nothing to filter
    with."""

    def read(self, seed: int) -> FederatedData:
        source = find_source(self.path, "femnist_leaf_writers.npz", WHAT)
        if source.is_dir():
            files = leaf_files(source)
            raw = cached("leaf-images-1", files, lambda: _from_leaf(files))
        else:
            raw = _from_npz(source)
        images, labels, writers, is_test, names = self._checked(raw, source)

        train = ~is_test
        train[train] = not_tested(images[train], images[is_test], source.name)

        trained = np.unique(writers[train])
        chosen = trained[draw_clients(len(trained), self.clients, seed)]
        tested = is_test & np.isin(writers, chosen)
        strangers = len(np.setdiff1d(writers[is_test], trained))
        say_left_out(strangers, f"writers of {source.name} have test images but none to train on; they were left out")
        train &= np.isin(writers, chosen)
        test = (images[tested], labels[tested], writers[tested])
        own = (images[train], labels[train], writers[train])
        del raw, images  # as large as all that is made of them
        data = FederatedData.from_arrays(
            *own, test=test, filtering=self.filtering, validation=self.validation, seed=seed
        )
        return replace(data, classes=self.classes, names=names[chosen])

    def _checked(
        self, raw: Arrays, source: Path
    ) -> tuple[NDArray[np.generic], NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_], NDArray[np.str_]]:
        """The arrays of a source, as [n, channels, height, width] and so on, or the reason against them."""
        images = raw["images"]
        if not 2 <= len(self.image) <= 3:
            raise DataError(
                f"data.image must be height, width and, where there are several, channels (got {self.image})"
            )
        height, width, channels = (*self.image, 1)[:3]
        flat = height * width * channels
        shapes = {(flat,), (height, width, channels)} | (
            {(height, width), (1, height, width)} if channels == 1 else set()
        )
        if images.shape[1:] not in shapes:
            shape, wanted = list(images.shape[1:]), list(self.image)
            raise DataError(
                f"{source}: images are {shape}, but data.image = {wanted} makes {flat} pixels in that shape"
            )
        if images.dtype != np.uint8 and images.dtype.kind != "f":
            raise DataError(f"{source}: images must be bytes (uint8) or floats (got {images.dtype})")
        for name in ("labels", "writers", "split"):
            if raw[name].shape != (len(images),) or not len(images):
                raise DataError(
                    f"{source}: {name} must have one entry an image (got {raw[name].shape} for {len(images)})"
                )
        labels = _whole(raw["labels"], f"{source}: labels")
        if labels.min() < 0 or labels.max() >= self.classes:
            where = int(np.flatnonzero((labels < 0) | (labels >= self.classes))[0])
            raise DataError(
                f"{source}: sample {where} has the label {labels[where]}, "
                f"but data.classes = {self.classes} allows 0 to {self.classes - 1}"
            )
        split = _whole(raw["split"], f"{source}: split")
        if set(np.unique(split)) != {0, 1}:
            raise DataError(f"{source}: split must be 0 (train) or 1 (test), and there must be samples of both")
        if "names" in raw:
            names, writers = raw["names"].astype(np.str_), _whole(raw["writers"], f"{source}: writers")
            if writers.min() < 0 or writers.max() >= len(names):
                raise DataError(f"{source}: writers must number the {len(names)} writer_names from 0")
        else:
            found, writers = np.unique(raw["writers"], return_inverse=True)
            names = found.astype(np.str_)
        if images.dtype != np.uint8:
            images = _compact(images.reshape(len(images), -1).astype(np.float64))
        pixels = np.moveaxis(images.reshape(len(images), height, width, channels), -1, 1)
        return np.ascontiguousarray(pixels), labels, writers, split == 1, names


def _whole(values: NDArray[np.generic], what: str) -> NDArray[np.int64]:
    if values.dtype.kind not in "biuf" or (values.dtype.kind == "f" and (values.astype(np.float64) % 1 != 0).any()):
        raise DataError(f"{what} must be whole numbers (got {values.dtype})")
    return values.astype(np.int64)


def _from_npz(path: Path) -> Arrays:
    """images [n, height, width], labels, writers (numbers), split (0 train, 1 test), and writer_names where given."""
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            missing = [name for name in ("images", "labels", "writers", "split") if name not in file.files]
            if missing:
                raise DataError(f"{path} has no {missing[0]}: it must be {WHAT}")
            arrays = {name: file[name] for name in ("images", "labels", "writers", "split")}
            if "writer_names" in file.files:
                arrays["names"] = file["writer_names"]
    except (OSError, ValueError, EOFError, TypeError, AttributeError, zlib.error, zipfile.BadZipFile) as error:
        raise DataError(f"{path} cannot be read as an .npz: {error}") from None
    return arrays


def _from_leaf(files: list[Path]) -> Arrays:
    """The same arrays out of LEAF's files: x are rows of numbers, y are whole numbers."""
    pieces: list[NDArray[Any]] = []
    labels, writers, split = [], [], []
    names: dict[str, int] = {}
    for user in read_leaf(files):
        where = f"{user.file}: user {user.name}"
        writer = names.setdefault(user.name, len(names))
        try:
            pixels = np.array(user.x, dtype=np.float64)
            targets = np.array(user.y, dtype=np.float64)
        except (ValueError, TypeError):
            raise DataError(f"{where}: every x must be a row of as many numbers, and every y a number") from None
        if not len(targets):
            continue
        if (
            pixels.ndim != 2
            or not pixels.shape[1]
            or targets.ndim != 1
            or not np.isfinite(pixels).all()
            or (targets % 1).any()
        ):
            raise DataError(f"{where}: every x must be a row of finite numbers, and every y a whole number")
        if pieces and pixels.shape[1] != pieces[0].shape[1]:
            raise DataError(f"{where}: an image has {pixels.shape[1]} pixels, the ones before {pieces[0].shape[1]}")
        pieces.append(_compact(pixels))
        labels.append(targets.astype(np.int64))
        writers.append(np.full(len(targets), writer))
        split.append(np.full(len(targets), int(user.split == "test")))
    if not pieces:
        raise DataError(f"{files[0].parent.parent} holds no samples")
    if len({piece.dtype for piece in pieces}) > 1:  # bytes for some users, other numbers for others
        pieces = [piece / np.float32(255) if piece.dtype == np.uint8 else piece for piece in pieces]
    return {
        "images": np.concatenate(pieces),
        "labels": np.concatenate(labels),
        "writers": np.concatenate(writers),
        "split": np.concatenate(split),
        "names": np.array(list(names), dtype=np.str_),
    }


def _compact(pixels: NDArray[np.float64]) -> NDArray[Any]:
    """Numbers that are bytes, or bytes divided by 255 as LEAF writes them, as bytes; any others as float32."""
    if pixels.min() >= 0 and 1 < pixels.max() <= 255 and not (pixels % 1).any():
        return pixels.astype(np.uint8)
    as_bytes = np.rint(pixels * 255)
    if pixels.min() >= 0 and pixels.max() <= 1 and np.abs(pixels * 255 - as_bytes).max() < 1e-3:
        return as_bytes.astype(np.uint8)
    return pixels.astype(np.float32)
