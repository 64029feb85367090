"""A filtering dataset of the server's own, out of a file."""

import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from filfl.data.characters import WINDOW, apart, encode
from filfl.data.federated import FederatedData, as_inputs, as_targets
from filfl.data.sources import say_left_out
from filfl.errors import DataError


def with_filter_file(data: FederatedData, path: str) -> FederatedData:
    """This data with the filtering set of a file: an .npz with x and y like the clients', or, for text, any text."""
    source = Path(path).expanduser()
    if not source.is_file():
        raise DataError(f"filter.path: there is no file {source}")
    text = data.sample_shape == (WINDOW,) and data.x.dtype.kind == "i"
    x, y = _from_text(source) if text and source.suffix != ".npz" else _from_npz(source)
    if x.shape[1:] != data.x.shape[1:] or x.dtype != data.x.dtype or y.dtype != data.y.dtype:
        raise DataError(
            f"filter.path: {source} has {x.dtype}{list(x.shape[1:])} with {y.dtype} targets, "
            f"but the clients have {data.x.dtype}{list(data.x.shape[1:])} with {data.y.dtype}"
        )
    if data.classes and y.size and y.max() >= data.classes:
        raise DataError(f"filter.path: {source} has the label {y.max()}, the clients' go from 0 to {data.classes - 1}")
    return replace(data, filter_x=x, filter_y=y)


def _from_text(source: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    """80 characters, the 81st is the label, and the next window starts after it, as in the paper's Table 3."""
    try:
        codes, unknown = encode(source.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"filter.path: {source} cannot be read as text: {error}") from None
    say_left_out(unknown, f"characters of {source.name} are outside the alphabet and were taken for spaces")
    rows = apart(codes)
    return rows[:, :WINDOW], rows[:, WINDOW].astype(np.int64)


def _from_npz(source: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    try:
        with source.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            x, y = as_inputs("filter.path: x", file["x"]), as_targets("filter.path: y", file["y"])
    except KeyError:
        raise DataError(f"filter.path: {source} must have arrays x and y") from None
    except (OSError, ValueError, EOFError, TypeError, AttributeError, zipfile.BadZipFile) as error:
        raise DataError(f"filter.path: {source} cannot be read as an .npz: {error}") from None
    if len(x) != len(y):
        raise DataError(f"filter.path: {source} has {len(x)} x and {len(y)} y")
    return x, y
