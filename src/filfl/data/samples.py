"""The arrays that a user gives for samples, targets and clients: convert them, and refuse what cannot be right."""

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from filfl.data.images import channels_first
from filfl.data.labels import as_names, is_missing, is_text, number_labels, plain
from filfl.display import some
from filfl.errors import DataError

Array = NDArray[np.generic]
Pair = tuple[ArrayLike, ArrayLike]
Owned = tuple[ArrayLike, ArrayLike, ArrayLike]
"""Samples, targets, and the client of each sample."""


def as_inputs(name: str, values: ArrayLike) -> Array:
    """Convert samples to float32, bytes or small integers. `name` is for the errors."""
    array = _numbers(name, values)
    if array.dtype.kind in "fb":
        array = array.astype(np.float32, copy=False)
        if bad := np.flatnonzero(~np.isfinite(array).all(axis=tuple(range(1, array.ndim)))).tolist():
            raise DataError(f"{name} must be finite (got other values in {len(bad)} samples, first in sample {bad[0]})")
        return array
    # Bytes are pixels. Other integers are tokens, which keep their small type until the batch.
    if array.dtype == np.uint8:
        return channels_first(array)
    return array if array.dtype in (np.uint8, np.int8, np.int16, np.int32) else array.astype(np.int64)


def as_targets(name: str, values: ArrayLike) -> Array:
    """Convert targets to int64 classes or float32. `name` is for the errors."""
    array = _numbers(name, values)
    if array.dtype.kind == "f":
        array = array.astype(np.float32, copy=False)
        if not np.isfinite(array).all():
            raise DataError(f"{name} must be finite (got targets that are not)")
        return array
    array = array.astype(np.int64, copy=False)
    if array.size and array.min() < 0:
        raise DataError(f"{name} must have labels 0, 1, 2, ... (got {array.min()})")
    return array


def samples_like(name: str, given: Pair, x: Array, y: Array) -> tuple[Array, Array]:
    """Convert samples and check that they have the shape and dtypes of the clients' `x` and `y`."""
    if len(given) != 2:
        raise DataError(f"{name} must be a share or arrays (x, y) (got {len(given)} arrays)")
    own_x, own_y = as_inputs(f"{name} x", given[0]), as_targets(f"{name} y", given[1])
    if own_x.shape[1:] != x.shape[1:] or own_x.dtype != x.dtype or own_y.dtype != y.dtype:
        raise DataError(
            f"{name} samples are {own_x.dtype}{list(own_x.shape[1:])} with {own_y.dtype} targets, "
            f"but those of the clients are {x.dtype}{list(x.shape[1:])} with {y.dtype} targets"
        )
    if len(own_x) != len(own_y):
        raise DataError(f"{name} x and y must have the same length (got {len(own_x)} and {len(own_y)})")
    return own_x, own_y


def numbered(y: ArrayLike, test: Any, filtering: Any) -> tuple[Array, Any, Any, tuple[str, ...]]:
    """Text labels as numbers: those of the clients, of a test set and of a filtering set, and the names of the classes.

    A class is any label of one of the three.
    """
    given = {"test y": test, "filtering y": filtering}
    sets = {name: part for name, part in given.items() if isinstance(part, tuple | list) and len(part) >= 2}
    texts = {name: _texts(name, labels) for name, labels in {"y": y, **{k: p[1] for k, p in sets.items()}}.items()}
    classes = sorted(set().union(*texts.values()))
    numbered = {name: number_labels(name, labels, classes) for name, labels in texts.items()}
    test, filtering = ((part[0], numbered[name], *part[2:]) if name in sets else part for name, part in given.items())
    return numbered["y"], test, filtering, tuple(classes)


def client_numbers(key: str, wanted: Sequence[Any], names: Array) -> list[int]:
    """The numbers of clients from their names. `key` is for the errors."""
    known = {str(name): k for k, name in enumerate(names)}
    if isinstance(wanted, str) or not len(wanted):
        raise DataError(f"{key} must be a list of one or more clients (got {wanted!r})")
    for name in map(str, wanted):
        if name not in known:
            near = [other for other in known if other.startswith(name)][:1] or get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"the first ones are {some([*known])}"
            raise DataError(f"{key}: there is no client {name}; {hint}")
    return sorted({known[str(name)] for name in wanted})


def client_indices(names: Array, client_ids: ArrayLike, count: int) -> NDArray[np.int64]:
    """The index of the client of each test sample; -1 for a client without training samples."""
    owners = as_names("test client_ids", client_ids)
    if len(owners) != count:
        raise DataError(f"test x and client_ids must have the same length (got {count} and {len(owners)})")
    indices = np.searchsorted(names, owners).clip(max=len(names) - 1)
    return np.where(names[indices] == owners, indices, -1)


def _texts(name: str, labels: ArrayLike) -> list[str]:
    array = np.asarray(labels)
    if not is_text(array):
        raise DataError(f"{name} must have texts as labels, like y (got {array.dtype})")
    if count := int(is_missing(array).sum()):
        raise DataError(f"{name} must have a label for every sample (got {count} missing of {len(array)})")
    return [str(label) for label in plain(name, array).tolist()]


def _numbers(name: str, values: ArrayLike) -> Array:
    try:
        array = np.asarray(values)
    except (ValueError, TypeError, RuntimeError) as error:
        raise DataError(f"{name} cannot be converted to an array: {error}") from None
    if array.dtype.kind not in "buif":
        raise DataError(f"{name} must be numbers (got {array.dtype})")
    if array.ndim == 0:
        raise DataError(f"{name} must have one entry per sample (got a single number)")
    return array
