"""Converts columns of a Hugging Face dataset to arrays."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from filfl.data.characters import WINDOW, encode, warn_unknown
from filfl.data.federated import floored
from filfl.errors import ConfigError, DataError


class Table(Protocol):
    """The part of the interface of `datasets.Dataset` that is used here."""

    @property
    def column_names(self) -> Sequence[str]: ...

    def __len__(self) -> int: ...

    def __getitem__(self, column: str, /) -> Iterable[Any]: ...


def find_column(option: str, given: str | None, usual: Sequence[str], columns: Sequence[str]) -> str:
    """The column named by an option, or the first of the usual ones that exists."""
    if given is not None and given not in columns:
        raise ConfigError(f"data.{option} must be one of {', '.join(columns)} (got {given})")
    found = [given] if given is not None else [name for name in usual if name in columns]
    if not found:
        raise ConfigError(
            f"data.{option} is not set and no column is named {', '.join(usual)}; set it to one of {', '.join(columns)}"
        )
    return found[0]


def inputs(tables: Sequence[Table], column: str) -> NDArray[Any]:
    """The inputs of tables: images with channels first, windows of characters, or numbers."""
    values = [value for table in tables for value in table[column]]
    if not values:
        raise DataError(f"column {column} is empty")
    if isinstance(values[0], str):
        return _windows(values, column)
    try:
        stacked = np.stack([np.asarray(value) for value in values])
    except ValueError:
        raise DataError(f"column {column}: the samples must have the same shape") from None
    if stacked.dtype.kind not in "buif":
        raise DataError(f"column {column} must have images, numbers or strings (got {type(values[0]).__name__})")
    if stacked.ndim == 3 and stacked.dtype == np.uint8:
        return stacked[:, None]
    if stacked.ndim == 4 and stacked.shape[-1] in (1, 3, 4):
        return np.ascontiguousarray(np.moveaxis(stacked, -1, 1))
    return stacked


def owners_of(tables: Sequence[Table], by: str | None) -> NDArray[Any]:
    """The client of each sample: the value of a column, or the index of its table."""
    if by is None:
        return np.repeat(np.arange(len(tables)), [len(table) for table in tables])
    return np.array([str(value) for table in tables for value in table[by]])


@dataclass(frozen=True)
class Labels:
    """The encoding of the targets in a column.

    `texts` are the classes if the targets are strings, () if they are single characters, which get LEAF's codes, and
    None if they are numbers.
    """

    column: str
    texts: tuple[str, ...] | None

    @classmethod
    def of(cls, tables: Sequence[Table], column: str) -> "Labels":
        values = {value for table in tables for value in table[column]}
        if not all(isinstance(value, str) for value in values):
            return cls(column, None)
        return cls(column, () if all(len(value) == 1 for value in values) else tuple(sorted(values)))

    def encode(self, *tables: Table) -> NDArray[Any]:
        values = [value for table in tables for value in table[self.column]]
        if self.texts is None:
            return np.asarray(values)
        if not self.texts:
            return _encoded("".join(values), self.column)
        classes = {text: i for i, text in enumerate(self.texts)}
        return np.array([classes[value] for value in values])


def _windows(texts: Sequence[str], column: str) -> NDArray[np.int8]:
    wrong = next((i for i, text in enumerate(texts) if len(text) != WINDOW), None)
    if wrong is not None:
        found = f"{len(texts[wrong])} in sample {wrong}"
        raise DataError(f"column {column}: strings must have {WINDOW} characters (got {found})")
    return _encoded("".join(texts), column).reshape(-1, WINDOW)


def _encoded(text: str, column: str) -> NDArray[np.int8]:
    codes, unknown = encode(text)
    warn_unknown(f"column {column}", unknown)
    return codes


def split_by_position(sizes: Sequence[int], share: float, gap: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The training rows and the last `share` of the rows of each table, for concatenated tables of these sizes.

    The `gap` rows between them are in neither: their windows share text with both.
    """
    train, last, start = [], [], 0
    for size in sizes:
        cut = size - floored(share, size)
        train.append(np.arange(start, start + max(0, cut - gap) if cut < size else start + size))
        last.append(np.arange(start + cut, start + size))
        start += size
    return np.concatenate(train), np.concatenate(last)
