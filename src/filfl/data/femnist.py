"""FEMNIST: handwritten characters with their writers as clients, and other images in LEAF's format.

Caldas et al.: LEAF: A Benchmark for Federated Settings. 2018.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from filfl.config.schema import Count, Share
from filfl.data.base import ByClient
from filfl.data.federated import FederatedData
from filfl.data.labels import is_missing, plain
from filfl.data.leaf import leaf_files, read_leaf
from filfl.data.sources import Arrays, cached, draw_clients, find_source, not_in_test, read_npz, warn_count
from filfl.errors import DataError

NAMES = ("femnist_leaf_writers.npz", "femnist", "leaf/data/femnist/data")
"""The files and folders that are looked for in the folder FILFL_DATA, in this order."""
EXPECTED = "a folder with LEAF's train/*.json and test/*.json, or an .npz with images, labels, writers and split"


@dataclass(frozen=True, kw_only=True)
class Femnist(ByClient):
    """LEAF's FEMNIST: characters by their writers, from LEAF's JSON files or an .npz; also other images in this format.

    The global test set consists of LEAF's test images of the writers that take part. A training image that is also a
    test image is dropped. For images of your own, set `classes` and `image`; channels come last, as in LEAF.
    """

    path: str | None = None
    """LEAF's folder with train/ and test/, or an .npz file. Unset: femnist_leaf_writers.npz, femnist or
    leaf/data/femnist/data in the folder FILFL_DATA."""
    clients: Count | None = None
    """The number of writers, drawn by seed, with their own test images only. Unset is all of them."""
    classes: Count = 62
    """The number of classes. Labels must be below it."""
    image: tuple[Count, ...] = (28, 28)
    """Height and width of an image and, if there are several, the number of channels."""
    inverted: bool = False
    """Whether to invert the images. In LEAF's, paper is 1 and ink is 0; a network learns sooner if paper is 0."""
    validation: Share = 0.2

    def check_source(self) -> None:
        self._source()

    def _source(self) -> Path:
        return find_source(self.path, NAMES, EXPECTED)

    def read(self, seed: int) -> FederatedData:
        source = self._source()
        if source.is_dir():
            files = leaf_files(source)
            raw = cached("leaf-images-3", files, lambda: _from_leaf(files))
        else:
            raw = read_npz(source, ("images", "labels", "writers", "split"), optional=("writer_names",))
        images, labels, writers, is_test, names = self._checked(raw, source)
        if self.inverted:
            images = (255 if images.dtype == np.uint8 else 1) - images

        train = ~is_test
        train[train] = not_in_test(images[train], images[is_test], source.name)

        trained = np.unique(writers[train])
        chosen = trained[draw_clients(len(trained), self.clients, seed)]
        tested = is_test & np.isin(writers, chosen)
        only_tested = len(np.setdiff1d(writers[is_test], trained))
        warn_count(source.name, "writers with test images but no training images, left out", only_tested)
        train &= np.isin(writers, chosen)
        clients, names = np.searchsorted(chosen, writers), names[chosen]
        test = (images[tested], labels[tested], clients[tested])
        own = (images[train], labels[train], clients[train])
        del raw, images  # as large as the arrays made from them
        return replace(self.hold_out(*own, test, seed, names), classes=self.classes, names=names)

    def _checked(
        self, raw: Arrays, source: Path
    ) -> tuple[NDArray[np.generic], NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_], NDArray[np.str_]]:
        """Check the arrays of a source: images [n, channels, height, width], labels, writers, is_test, writer names."""
        images = raw["images"]
        if not 2 <= len(self.image) <= 3:
            raise DataError(f"data.image must be [height, width] or [height, width, channels] (got {list(self.image)})")
        height, width, channels = (*self.image, 1)[:3]
        flat = height * width * channels
        shapes = [(flat,), (height, width, channels)]
        if channels == 1:
            shapes += [(height, width), (1, height, width)]
        if images.shape[1:] not in shapes:
            raise DataError(
                f"{source}: images have shape {list(images.shape[1:])}, which does not match data.image = "
                f"{list(self.image)} with its {flat} pixels"
            )
        if images.dtype != np.uint8 and images.dtype.kind != "f":
            raise DataError(f"{source}: images must be uint8 or floating point (got {images.dtype})")
        for name in ("labels", "writers", "split"):
            if raw[name].shape != (len(images),) or not len(images):
                raise DataError(
                    f"{source}: {name} must have one entry per image (got shape {list(raw[name].shape)} for "
                    f"{len(images)} images)"
                )
        labels = _indices(raw["labels"], f"{source}: labels", self.classes, f" with data.classes = {self.classes}")
        if set(np.unique(raw["split"]).tolist()) != {0, 1}:
            raise DataError(f"{source}: split must be 0 (train) or 1 (test), and both must occur")
        if "writer_names" in raw:
            names = _names(raw["writer_names"], f"{source}: writer_names")
            if names.ndim != 1 or len(np.unique(names)) < len(names):
                raise DataError(f"{source}: writer_names must be a list of different names")
            writers = _indices(raw["writers"], f"{source}: writers", len(names), ", indices into writer_names")
        else:
            found, writers = np.unique(raw["writers"], return_inverse=True)
            names = _names(found, f"{source}: writers")
        if images.dtype != np.uint8:
            images = _compact(images.reshape(len(images), -1).astype(np.float64))
        pixels = np.moveaxis(images.reshape(len(images), height, width, channels), -1, 1)
        return np.ascontiguousarray(pixels), labels, writers, raw["split"] == 1, names


def _names(values: NDArray[Any], what: str) -> NDArray[np.str_]:
    """Check that the values are names or numbers, and convert them to texts."""
    if values.dtype.kind not in "biufSU" or is_missing(values).any():
        raise DataError(f"{what} must be names or numbers (got {values.dtype})")
    return plain(what, values).astype(np.str_)


def _indices(values: NDArray[np.generic], what: str, below: int, meaning: str) -> NDArray[np.int64]:
    """Check that the values are integers of at least 0 and below a bound."""
    if values.dtype.kind not in "biuf" or (values.dtype.kind == "f" and (values.astype(np.float64) % 1 != 0).any()):
        raise DataError(f"{what} must be integers (got {values.dtype})")
    integers = values.astype(np.int64)
    if len(wrong := np.flatnonzero((integers < 0) | (integers >= below))):
        got = f"{integers[wrong[0]]} in sample {wrong[0]}"
        raise DataError(f"{what} must be between 0 and {below - 1}{meaning} (got {got})")
    return integers


def _from_leaf(files: list[Path]) -> Arrays:
    """The arrays of the .npz format from LEAF's files, where x are rows of numbers and y are integers."""
    images: list[NDArray[Any]] = []
    columns = []
    names: dict[str, int] = {}
    for user in read_leaf(files):
        where = f"{user.file}: user {user.name}"
        writer = names.setdefault(user.name, len(names))
        if not user.y:
            continue
        try:
            pixels, labels = np.array(user.x, dtype=np.float64), np.array(user.y, dtype=np.float64)
        except (ValueError, TypeError, OverflowError):
            raise DataError(f"{where}: x must be rows of numbers, all of one length, and y must be numbers") from None
        are_rows = pixels.ndim == 2 and pixels.shape[1] and np.isfinite(pixels).all()
        if not are_rows or labels.ndim != 1 or (labels % 1).any():
            raise DataError(f"{where}: x must be rows of finite numbers, and y must be integers")
        if images and pixels.shape[1] != images[0].shape[1]:
            raise DataError(f"{where}: images have {pixels.shape[1]} pixels, those before have {images[0].shape[1]}")
        images.append(_compact(pixels))
        of_each = np.full((len(labels), 2), (writer, user.split == "test"))
        columns.append(np.column_stack([labels.astype(np.int64), of_each]))
    if not images:
        raise DataError(f"{files[0].parent.parent} has no samples")
    if len({piece.dtype for piece in images}) > 1:  # bytes for some users, other numbers for others
        images = [piece / np.float32(255) if piece.dtype == np.uint8 else piece for piece in images]
    labels, writers, split = np.concatenate(columns).T
    return {
        "images": np.concatenate(images),
        "labels": labels,
        "writers": writers,
        "split": split,
        "writer_names": np.array(list(names), dtype=np.str_),
    }


def _compact(pixels: NDArray[np.float64]) -> NDArray[Any]:
    """Bytes, or bytes divided by 255 as LEAF writes them, become uint8; other numbers become float32."""
    if pixels.min() >= 0 and 1 < pixels.max() <= 255 and not (pixels % 1).any():
        return pixels.astype(np.uint8)
    as_bytes = np.rint(pixels * 255)
    if pixels.min() >= 0 and pixels.max() <= 1 and np.abs(pixels * 255 - as_bytes).max() < 1e-3:
        return as_bytes.astype(np.uint8)
    return pixels.astype(np.float32)
