"""FEMNIST: handwritten characters with their writers as clients, and other images in LEAF's format.

Caldas et al.: LEAF: A Benchmark for Federated Settings. 2018.
"""

import zipfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from filfl.data.base import Dataset
from filfl.data.cache import Arrays, cached
from filfl.data.federated import FederatedData
from filfl.data.leaf import leaf_files, read_leaf
from filfl.data.sources import draw_clients, find_source, say_left_out
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
    clients: Count | None = None
    classes: Count = 62
    image: tuple[Count, ...] = (28, 28)
    validation: Share = 0.2
    filtering: Share = 0.05

    def read(self, seed: int) -> FederatedData:
        source = find_source(self.path, "femnist_leaf_writers.npz", WHAT)
        if source.is_dir():
            files = leaf_files(source)
            raw = cached("leaf-images-1", files, lambda: _from_leaf(files))
        else:
            raw = _from_npz(source)
        images, labels, writers, is_test, names = self._checked(raw, source)

        tests = {row.tobytes() for row in images[is_test]}
        doubled = ~is_test & np.fromiter((row.tobytes() in tests for row in images), dtype=bool, count=len(images))
        say_left_out(int(doubled.sum()), f"training images of {source.name} are test images too and were dropped")
        del tests
        train = ~is_test & ~doubled

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
        return replace(data, classes=self.classes, names=tuple(names[chosen].tolist()))

    def _checked(
        self, raw: Arrays, source: Path
    ) -> tuple[NDArray[np.generic], NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_], NDArray[np.str_]]:
        """The arrays of a source, as [n, channels, height, width] and so on, or the reason against them."""
        images, labels = raw["images"], raw["labels"].astype(np.int64)
        height, width, channels = (*self.image, 1)[:3]
        expected = height * width * channels
        if images.ndim < 2 or int(np.prod(images.shape[1:])) != expected:
            shape = list(images.shape[1:])
            raise DataError(
                f"{source}: images are {shape}, but data.image = {list(self.image)} makes {expected} pixels"
            )
        lengths = {name: len(raw[name]) for name in ("images", "labels", "writers", "split")}
        if len(set(lengths.values())) != 1 or not lengths["images"]:
            raise DataError(f"{source}: images, labels, writers and split must be of one length (got {lengths})")
        if labels.min() < 0 or labels.max() >= self.classes:
            where = int(np.flatnonzero((labels < 0) | (labels >= self.classes))[0])
            raise DataError(
                f"{source}: sample {where} has the label {labels[where]}, "
                f"but data.classes = {self.classes} allows 0 to {self.classes - 1}"
            )
        split = raw["split"].astype(np.int64)
        if not np.isin(split, (0, 1)).all():
            raise DataError(f"{source}: split must be 0 (train) or 1 (test) for every sample")
        if not (split == 1).any() or not (split == 0).any():
            raise DataError(f"{source}: there must be training and test samples")
        writers = raw["writers"].astype(np.int64)
        count = int(writers.max()) + 1
        names = raw["names"].astype(np.str_) if "names" in raw else np.array([f"{i:06d}" for i in range(count)])
        if writers.min() < 0 or count > len(names):
            raise DataError(f"{source}: writers must number the {len(names)} writer_names from 0 (got {count - 1})")
        pixels = np.moveaxis(images.reshape(len(images), height, width, channels), -1, 1)
        return np.ascontiguousarray(pixels), labels, writers, split == 1, names


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
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
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
        if pixels.ndim != 2 or targets.ndim != 1 or not np.isfinite(pixels).all() or (targets % 1).any():
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
    """Numbers that are bytes divided by 255, as LEAF writes them, back as bytes; any others as float32."""
    as_bytes = np.rint(pixels * 255)
    if pixels.min() >= 0 and pixels.max() <= 1 and np.abs(pixels * 255 - as_bytes).max() < 1e-3:
        return as_bytes.astype(np.uint8)
    return pixels.astype(np.float32)
