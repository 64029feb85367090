"""A filtering set of the server's own, read from the file `filter.path`."""

from dataclasses import replace
from pathlib import Path

from filfl.data.federated import FederatedData, Pair, samples_like
from filfl.data.shakespeare import WINDOW, read_text
from filfl.data.sources import read_npz
from filfl.errors import DataError


def with_filter_file(data: FederatedData, path: str) -> FederatedData:
    """Use the filtering set of a file: an .npz with x and y like the clients', or any text if the data is text."""
    source = Path(path).expanduser()
    if not source.is_file():
        raise DataError(f"filter.path: {source} is not a file")
    if data.sample_shape == (WINDOW,) and data.x.dtype.kind == "i" and source.suffix != ".npz":
        samples: Pair = read_text(source, "filter.path")
    else:
        arrays = read_npz(source, ("x", "y"), key="filter.path")
        samples = (arrays["x"], arrays["y"])
    x, y = samples_like(f"filter.path: {source}:", samples, data.x, data.y)
    if data.classes and y.size and y.max() >= data.classes:
        raise DataError(f"filter.path: labels of {source} must be between 0 and {data.classes - 1} (got {y.max()})")
    return replace(data, filter_x=x, filter_y=y, filter_from="server")
