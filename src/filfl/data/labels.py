"""Values of any source (lists, object arrays, columns) as plain arrays, and text labels as numbers."""

import numbers
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from filfl.display import some
from filfl.errors import DataError


def is_missing(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Which values are missing: None, NaN, and the missing values of pandas."""
    if values.dtype.kind == "O":
        return np.fromiter((_is_none(value) for value in values.flat), dtype=bool, count=values.size)
    missing = values != values if values.dtype.kind in "fmM" else np.zeros(values.shape, dtype=bool)
    return np.asarray(missing, dtype=bool)


def _is_none(value: object) -> bool:
    # pandas need not be installed, so its NA and NaT are known by their types' names.
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, float) and value != value


def plain(name: str, values: ArrayLike) -> NDArray[Any]:
    """Values as an array of texts, truth values, numbers or dates. Refuses values of mixed types."""
    array = np.asarray(values)
    if array.dtype.kind == "S":
        return np.char.decode(array, "utf-8", "backslashreplace")
    if array.dtype.kind == "T":  # numpy's own strings of variable length
        return array.astype(np.str_)
    if array.dtype.kind != "O":
        return array
    kinds: list[tuple[type | tuple[type, ...], Callable[[NDArray[Any]], NDArray[Any]]]] = [
        (str, lambda texts: texts.astype(np.str_)),
        ((bool, np.bool_), lambda truths: truths.astype(bool)),
        (numbers.Integral, lambda whole: np.array([int(value) for value in whole])),
        ((numbers.Real, Decimal), lambda real: real.astype(np.float64)),
    ]
    for kind, convert in kinds:
        if all(isinstance(value, kind) for value in array.flat):
            return convert(array)
    first = array.flat[0]
    other = next((value for value in array.flat if type(value) is not type(first)), first)
    if type(first) is type(other):
        raise DataError(f"{name} must be numbers or texts (got {type(first).__name__})")
    raise DataError(
        f"{name} has values of mixed types, such as {first!r} and {other!r}; make them all texts or numbers"
    )


def as_names(name: str, values: ArrayLike) -> NDArray[Any]:
    """Names of clients as an array of integers or texts."""
    array = np.asarray(values)
    if array.ndim != 1:
        raise DataError(f"{name} must be a list with one client per sample (got shape {list(array.shape)})")
    if count := int(is_missing(array).sum()):
        raise DataError(f"{name} must be integers or names (got {count} missing of {len(array)})")
    array = plain(name, array)
    if array.dtype.kind not in "iuUb":
        raise DataError(f"{name} must be integers or names (got {array.dtype})")
    return array


def is_text(values: ArrayLike) -> bool:
    """Whether labels are texts, which have to be numbered."""
    try:
        array = np.asarray(values)
    except (ValueError, TypeError, RuntimeError):
        return False  # ragged: reported where it is converted
    return array.dtype.kind in "UST" or (
        array.dtype.kind == "O" and any(isinstance(value, str) for value in array.flat)
    )


def number_labels(name: str, labels: Sequence[str], classes: Sequence[str]) -> NDArray[np.int64]:
    """The index of each label among the classes."""
    index = {label: i for i, label in enumerate(classes)}
    if unknown := sorted({label for label in labels if label not in index}):
        raise DataError(f"{name} must be one of {some(classes)} (got {some(unknown)})")
    return np.array([index[label] for label in labels], dtype=np.int64)


def several(name: str, client_ids: ArrayLike) -> NDArray[Any]:
    """The same clients, after a check that there are at least two of them."""
    array = as_names(name, client_ids)
    if len(array) and (array == array[0]).all():
        raise DataError(f"{name} has a single client ({array[0]}); filtering needs at least two")
    return array
