"""A filtering set of the server's own, read from `filter.path`."""

from dataclasses import replace

import numpy as np

from filfl.data.federated import FederatedData
from filfl.data.images import read_classes
from filfl.data.labels import number_labels
from filfl.data.samples import Pair, samples_like
from filfl.data.shakespeare import WINDOW, read_text
from filfl.data.sources import read_npz, user_path
from filfl.errors import DataError


def with_filter_file(data: FederatedData, path: str) -> FederatedData:
    """Use the filtering set of a file: an .npz with x and y like the clients'; a table if their data is a table, a
    folder class/file.png if it is images with named classes, any text if it is Shakespeare's."""
    source = user_path(path)
    if source.is_dir() and data.x.dtype == np.uint8 and len(data.sample_shape) == 3 and data.class_names:
        images, labels = read_classes(source, data.sample_shape)
        samples: Pair = (images, number_labels("filter.path: classes", labels, data.class_names))
    elif not source.is_file():
        raise DataError(f"filter.path: {source} is not a file")
    elif data.encoding and source.suffix != ".npz":
        rows, targets = data.encoding.samples(source)
        samples = (rows, targets)
    elif data.sample_shape == (WINDOW,) and data.x.dtype.kind == "i" and source.suffix != ".npz":
        samples = read_text(source, "filter.path")
    else:
        arrays = read_npz(source, ("x", "y"), key="filter.path")
        samples = (arrays["x"], arrays["y"])
    x, y = samples_like(f"filter.path: {source}:", samples, data.x, data.y)
    if data.classes and y.size and y.max() >= data.classes:
        raise DataError(f"filter.path: labels of {source} must be between 0 and {data.classes - 1} (got {y.max()})")
    return replace(data, filter_x=x, filter_y=y, filter_from="server")
