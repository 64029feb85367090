"""The columns of a Hugging Face dataset as arrays."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from filfl.data.labels import as_names
from filfl.data.sources import user_path
from filfl.data.texts import Tokenizer, tokenize
from filfl.data.torch_dataset import stack_inputs
from filfl.errors import DataError

INPUTS = ("image", "img", "x", "features", "text")
TARGETS = ("label", "labels", "character", "y", "target")
"""Usual names of the columns of inputs and targets."""


class Table(Protocol):
    """The part of the interface of `datasets.Dataset` that is used here."""

    @property
    def column_names(self) -> Sequence[str]: ...

    def __len__(self) -> int: ...

    def __getitem__(self, column: str, /) -> Iterable[Any]: ...


@dataclass(frozen=True)
class HuggingFace:
    """Which columns and splits of a dataset to read."""

    client: str
    target: str | None
    input: str | None
    split: str
    test_split: str
    tokenizer: Tokenizer | None
    length: int | None
    channels_last: bool

    def read(
        self, dataset: Any
    ) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], tuple[NDArray[Any], ...] | None, tuple[str, ...]]:
        """Inputs, targets and clients; the test set, if the dataset has one; and the names of the classes, if known."""
        table, test = self._tables(dataset)
        columns = list(table.column_names)
        if self.client not in columns:
            raise DataError(f"client must be one of the columns {', '.join(columns)} (got {self.client})")
        x_column = find_column("input", self.input, INPUTS, columns)
        y_column = find_column("target", self.target, TARGETS, columns)
        x, y = self._inputs(table, x_column), np.asarray(list(table[y_column]))
        owners = _names(table, self.client)
        if test is None:
            return x, y, owners, None, class_names(table, y_column)
        tested = (self._inputs(test, x_column), np.asarray(list(test[y_column])))
        owned = (*tested, _names(test, self.client)) if self.client in test.column_names else tested
        return x, y, owners, owned, class_names(table, y_column)

    def samples(self, dataset: Any) -> tuple[NDArray[Any], NDArray[Any]]:
        """The inputs and targets of a filtering set or test set without clients."""
        table, _ = self._tables(dataset)
        columns = list(table.column_names)
        x_column = find_column("input", self.input, INPUTS, columns)
        y_column = find_column("target", self.target, TARGETS, columns)
        return self._inputs(table, x_column), np.asarray(list(table[y_column]))

    def _tables(self, dataset: Any) -> tuple[Table, Table | None]:
        if isinstance(dataset, str | Path):
            dataset = load_from_disk(user_path(dataset))
        test = None
        if isinstance(dataset, Mapping):
            if self.split not in dataset:
                raise DataError(f"the dataset has no split {self.split}; set split to one of {', '.join(dataset)}")
            dataset, test = dataset[self.split], dataset.get(self.test_split)
        if not (hasattr(dataset, "column_names") and hasattr(dataset, "__len__")):
            kinds = "a Dataset or DatasetDict of Hugging Face, or a folder of save_to_disk"
            raise DataError(f"dataset must be {kinds} (got {type(dataset).__name__})")
        if not len(dataset):
            raise DataError("the dataset is empty")
        return dataset, test

    def _inputs(self, table: Table, column: str) -> NDArray[Any]:
        values = list(table[column])
        if not values or not isinstance(values[0], str):
            return stack_inputs(values, f"column {column}", self.channels_last)
        if self.tokenizer is None or self.length is None:
            raise DataError(
                f"column {column} has texts; set tokenizer, a function (text) -> list of whole numbers, and length"
            )
        return tokenize(values, self.tokenizer, self.length)


def load_from_disk(folder: Path) -> Any:
    """The dataset in a folder that `save_to_disk` of Hugging Face wrote."""
    try:
        import datasets
    except ImportError:
        raise DataError("a folder of save_to_disk needs the package datasets: pip install 'filfl[hub]'") from None
    if not is_saved(folder):
        raise DataError(f"{folder} {'was not written by save_to_disk' if folder.exists() else 'does not exist'}")
    try:
        return datasets.load_from_disk(str(folder))
    except Exception as error:  # a damaged folder can raise any exception
        raise DataError(f"{folder} cannot be read: {type(error).__name__}: {error}") from None


def is_saved(folder: Path) -> bool:
    """Whether `save_to_disk` of Hugging Face wrote this folder."""
    return any((folder / name).is_file() for name in ("dataset_dict.json", "state.json"))


def find_column(option: str, given: str | None, usual: Sequence[str], columns: Sequence[str]) -> str:
    """The column named by an option, or the first of the usual ones that exists."""
    known = ", ".join(columns)
    if given is not None and given not in columns:
        raise DataError(f"{option} must be one of {known} (got {given})")
    found = given or next((name for name in usual if name in columns), None)
    if found is None:
        raise DataError(
            f"{option} is not set and no column is named {', '.join(usual)}; set it to one of {known}, or, if every "
            "column is an input, use FederatedData.from_frame(dataset.to_pandas(), ...)"
        )
    return found


def class_names(table: Table, column: str) -> tuple[str, ...]:
    """The names of the classes, if the column is a ClassLabel."""
    features = getattr(table, "features", None) or {}
    return tuple(getattr(features.get(column), "names", None) or ())


def _names(table: Table, column: str) -> NDArray[Any]:
    """The client of each sample; by name, if the column is a ClassLabel."""
    values, names = list(table[column]), class_names(table, column)
    return as_names(f"column {column}", np.array([names[value] for value in values] if names else values, dtype=object))
