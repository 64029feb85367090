"""A filtering set of the server's own, read from the file `filter.path`."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from filfl.data.characters import WINDOW, read_disjoint_windows
from filfl.data.federated import Array, FederatedData, as_inputs, as_targets
from filfl.data.sources import read_npz
from filfl.errors import DataError


def with_filter_file(data: FederatedData, path: str) -> FederatedData:
    """Use the filtering set of a file: an .npz with x and y like the clients', or any text if the data is text."""
    source = Path(path).expanduser()
    if not source.is_file():
        raise DataError(f"filter.path: {source} is not a file")
    is_text = data.sample_shape == (WINDOW,) and data.x.dtype.kind == "i"
    x, y = _from_text(source) if is_text and source.suffix != ".npz" else _from_npz(source)
    if x.shape[1:] != data.x.shape[1:] or x.dtype != data.x.dtype or y.dtype != data.y.dtype:
        raise DataError(
            f"filter.path: samples of {source} are {x.dtype}{list(x.shape[1:])} with {y.dtype} targets, "
            f"but those of the clients are {data.x.dtype}{list(data.x.shape[1:])} with {data.y.dtype} targets"
        )
    if data.classes and y.size and y.max() >= data.classes:
        raise DataError(f"filter.path: labels of {source} must be between 0 and {data.classes - 1} (got {y.max()})")
    return replace(data, filter_x=x, filter_y=y)


def _from_text(source: Path) -> tuple[Array, Array]:
    rows = read_disjoint_windows(source, "filter.path")
    return rows[:, :WINDOW], rows[:, WINDOW].astype(np.int64)


def _from_npz(source: Path) -> tuple[Array, Array]:
    arrays = read_npz(source, ("x", "y"), key="filter.path")
    x, y = as_inputs("filter.path: x", arrays["x"]), as_targets("filter.path: y", arrays["y"])
    if len(x) != len(y):
        raise DataError(f"filter.path: x and y of {source} must have the same length (got {len(x)} and {len(y)})")
    return x, y
