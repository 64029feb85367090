"""Columns of a Hugging Face dataset as arrays."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from filfl.data.characters import WINDOW, encode
from filfl.data.federated import floored
from filfl.data.sources import say_left_out
from filfl.errors import ConfigError, DataError


class Table(Protocol):
    """What is used of a `datasets.Dataset`."""

    @property
    def column_names(self) -> Sequence[str]: ...

    def __len__(self) -> int: ...

    def __getitem__(self, column: str, /) -> Iterable[Any]: ...


def find_column(option: str, given: str | None, usual: Sequence[str], columns: Sequence[str]) -> str:
    """The column that an option names, or the first of the usual ones."""
    if given is not None and given not in columns:
        raise ConfigError(f"data.{option} must be one of {', '.join(columns)} (got {given})")
    found = [given] if given is not None else [name for name in usual if name in columns]
    if not found:
        raise ConfigError(f"data.{option} is not set, and none of {', '.join(usual)} is a column: {', '.join(columns)}")
    return found[0]


def inputs(tables: Sequence[Table], column: str) -> NDArray[Any]:
    """The inputs of tables: images with the channels first, windows of characters, or numbers."""
    values = [value for table in tables for value in table[column]]
    if not values:
        raise DataError(f"column {column} is empty")
    if isinstance(values[0], str):
        return _windows(values, column)
    try:
        stacked = np.stack([np.asarray(value) for value in values])
    except ValueError:
        raise DataError(f"column {column}: the samples are not all of one shape") from None
    if stacked.dtype.kind not in "buif":
        raise DataError(f"column {column} must hold images, numbers or texts (got {type(values[0]).__name__})")
    if stacked.ndim == 3 and stacked.dtype == np.uint8:
        return stacked[:, None]
    if stacked.ndim == 4 and stacked.shape[-1] in (1, 3, 4):
        return np.ascontiguousarray(np.moveaxis(stacked, -1, 1))
    return stacked


def owners_of(tables: Sequence[Table], by: str | None) -> NDArray[Any]:
    """Whose each sample is: the value of a column, or the number of its table."""
    if by is None:
        return np.repeat(np.arange(len(tables)), [len(table) for table in tables])
    return np.array([str(value) for table in tables for value in table[by]])


@dataclass(frozen=True)
class Labels:
    """The column of the targets, and the order of its texts where it has texts; characters have LEAF's numbers."""

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
        places = {text: i for i, text in enumerate(self.texts)}
        return np.array([places[value] for value in values])


def _windows(texts: Sequence[str], column: str) -> NDArray[np.int8]:
    wrong = next((i for i, text in enumerate(texts) if len(text) != WINDOW), None)
    if wrong is not None:
        found = f"sample {wrong} has {len(texts[wrong])}"
        raise DataError(f"column {column}: texts must have {WINDOW} characters ({found})")
    return _encoded("".join(texts), column).reshape(-1, WINDOW)


def _encoded(text: str, column: str) -> NDArray[np.int8]:
    codes, unknown = encode(text)
    say_left_out(unknown, f"characters of column {column} are outside the alphabet and were taken for spaces")
    return codes


def split_by_position(sizes: Sequence[int], share: float, gap: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Of tables of these sizes, one after the other: which rows train, and which are the last `share` of each table.

    The `gap` rows before those are neither: their windows share text with both.
    """
    train, last, start = [], [], 0
    for size in sizes:
        cut = size - floored(share, size)
        train.append(np.arange(start, start + max(0, cut - gap) if cut < size else start + size))
        last.append(np.arange(start + cut, start + size))
        start += size
    return np.concatenate(train), np.concatenate(last)
