"""Images: the order of their axes, and folders of image files."""

import logging
import os
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from filfl.data.frames import read_columns, whole_numbers
from filfl.data.labels import several
from filfl.data.limits import refuse_bomb
from filfl.display import some
from filfl.errors import DataError

log = logging.getLogger(__name__)

COLOURS = (1, 3, 4)
"""How many channels an image may have."""


def channels_first(x: NDArray[Any], channels_last: bool = False) -> NDArray[Any]:
    """Images [n, channels, height, width], from these or from [n, height, width, channels].

    Bytes have their channels last if their last axis has 1, 3 or 4 entries and the second one has not.
    """
    if channels_last and x.ndim != 4:
        raise DataError(f"channels_last needs images [height, width, channels] (got shape {list(x.shape[1:])})")
    found = x.ndim == 4 and x.dtype == np.uint8 and x.shape[-1] in COLOURS and x.shape[1] not in COLOURS
    if channels_last or found:
        return np.ascontiguousarray(np.moveaxis(x, -1, 1))
    return x


@dataclass(frozen=True)
class ImageFolder:
    """A folder with images in client/class/, or in class/ if a table names the client of each file."""

    path: Path
    client_table: str | Path | None
    size: int | tuple[int, int] | None

    def read(self) -> tuple[NDArray[np.uint8], list[str], NDArray[Any]]:
        """The images, their classes and their clients."""
        files = _files(self.path, "class/file" if self.client_table else "client/class/file")
        if self.client_table:
            owners = _owners(files, self.client_table)
        else:
            owners = whole_numbers(np.array([name.split("/")[0] for name in files]))
        x = _stacked([self.path / name for name in files], self._size())
        return x, [name.split("/")[-2] for name in files], several(str(self.path), owners)

    def _size(self) -> tuple[int, int] | None:
        """Height and width."""
        if self.size is None:
            return None
        sides = (self.size, self.size) if isinstance(self.size, int) else tuple(self.size)
        if len(sides) != 2 or not all(isinstance(side, int) and side >= 1 for side in sides):
            raise DataError(f"size must be one or two whole numbers of at least 1 (got {self.size!r})")
        return sides[0], sides[1]


def read_classes(path: Path, like: tuple[int, ...]) -> tuple[NDArray[np.uint8], list[str]]:
    """The images of a folder class/file.png and their classes, with the channels, height and width of `like`."""
    files, (channels, height, width) = _files(path, "class/file"), like
    x = _stacked([path / name for name in files], (height, width), grey=channels == 1)
    return x, [name.split("/")[0] for name in files]


def _files(path: Path, layout: str) -> list[str]:
    """The image files of a folder, as paths inside it, in alphabetical order."""
    if not path.is_dir():
        raise DataError(
            f"{path} {'is not a folder' if path.exists() else 'does not exist'}; give a folder with {layout}"
        )
    found = sorted(
        file.relative_to(path).as_posix()
        for folder, _, names in os.walk(path)
        for file in (Path(folder, name) for name in names)
        if not any(part.startswith(".") for part in file.relative_to(path).parts)
    )
    known = Image.registered_extensions()
    files = [name for name in found if Path(name).suffix.lower() in known]
    if other := sorted(set(found) - set(files)):
        log.warning("%s: files that are not images, left out: %s", path, some(other))
    if not files:
        raise DataError(f"{path} has no images; it must have files like {layout}.png")
    if wrong := [name for name in files if name.count("/") != layout.count("/")]:
        hint = "" if layout.startswith("client") else ", without a folder per client"
        also = "; or give client_table, a file with the columns file and client" if layout.startswith("client") else ""
        raise DataError(f"{path} must have images in {layout}.png{hint} (got {wrong[0]}){also}")
    return files


def _owners(files: Sequence[str], table: str | Path) -> NDArray[Any]:
    """The client of each file, from a table with the columns file and client."""
    columns = read_columns(table, ["client", "file"])
    if absent := [name for name in ("file", "client") if name not in columns]:
        raise DataError(f"{table} must have the columns file and client (it has {', '.join(columns)}; no {absent[0]})")
    names = [str(name).replace("\\", "/").removeprefix("./") for name in columns["file"].tolist()]
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise DataError(f"{table} has {twice[0]} more than once")
    owner = dict(zip(names, whole_numbers(columns["client"]).tolist(), strict=True))
    if without := [name for name in files if name not in owner]:
        raise DataError(f"{table} has no client for {len(without)} of {len(files)} images, such as {without[0]}")
    return np.array([owner[name] for name in files], dtype=object)


def _stacked(files: Sequence[Path], size: tuple[int, int] | None, grey: bool | None = None) -> NDArray[np.uint8]:
    """Images as bytes [n, channels, height, width]: grey or coloured; by default grey if all of them are."""
    images = _opened(files)
    grey = all(image.mode in ("1", "L") for image in images) if grey is None else grey
    if size is None and len(sizes := {image.size[::-1]: file for image, file in zip(images, files, strict=True)}) > 1:
        listed = some([f"{height} x {width} ({file.name})" for (height, width), file in sizes.items()])
        raise DataError(f"the images have different sizes: {listed}; set size, the height and width to resize them to")
    arrays = []
    for image in images:
        converted = image.convert("L" if grey else "RGB")
        resized = converted if size is None else converted.resize(size[::-1], Image.Resampling.BILINEAR)
        arrays.append(np.asarray(resized, dtype=np.uint8))
    stacked = np.stack(arrays)
    return stacked[:, None] if grey else np.ascontiguousarray(np.moveaxis(stacked, -1, 1))


def _opened(files: Sequence[Path]) -> list[Image.Image]:
    """Images, turned as their cameras recorded them."""
    images, size, on_disk = [], 0, 0
    for file in files:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # the limit below is ours
                with Image.open(file) as image:
                    size += image.width * image.height * len(image.getbands())
                    on_disk += file.stat().st_size
                    refuse_bomb(str(file), size, on_disk)
                    image.load()
                    images.append(ImageOps.exif_transpose(image))
        except DataError:
            raise
        except Exception as error:  # a damaged file can raise any exception
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            reason = "not an image" if isinstance(error, UnidentifiedImageError) else reason
            raise DataError(f"{file} cannot be read: {reason}") from None
    return images
