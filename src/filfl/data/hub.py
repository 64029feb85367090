"""Datasets of the Hugging Face hub, with the partitioners of flwr-datasets (the extra `filfl[hub]`).

The datasets of the paper: `flwrlabs/femnist` by `writer_id`, `flwrlabs/shakespeare` by `character_id`,
`uoft-cs/cifar10`.
"""

import logging
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from filfl.config.schema import Count, Share, show
from filfl.data.base import ByClient
from filfl.data.federated import FederatedData
from filfl.data.huggingface import INPUTS, TARGETS, Table, class_names, find_column, is_saved, load_from_disk
from filfl.data.shakespeare import ALPHABET, WINDOW, encode_or_warn
from filfl.data.sources import draw_clients, not_in_test, user_path
from filfl.data.split import floored
from filfl.data.torch_dataset import stack_inputs
from filfl.errors import ConfigError, DataError

log = logging.getLogger(__name__)

TEST = 0.2
"""The share of the last windows of a text that are test samples, unless `test` is set."""


@dataclass(frozen=True, kw_only=True)
class Hub(ByClient):
    """A dataset of the Hugging Face hub by name, with any partitioner of flwr-datasets: pip install 'filfl[hub]'.

    With `client`, every value of that column is a client. Without it, `partitioner` splits the samples into clients.
    """

    dataset: str = ""
    """The name of the dataset on the hub, such as flwrlabs/femnist, or a folder: of parquet files, or written by
    save_to_disk of Hugging Face."""
    subset: str | None = None
    """The configuration of the dataset on the hub, if it has several."""
    client: str | None = None
    """The column with the client of each sample."""
    clients: Count | None = None
    """With `client`: the number of clients, drawn with the seed; unset: all. Without it: how many partitions (10)."""
    partitioner: str = "IidPartitioner"
    """A class of flwr_datasets.partitioner."""
    arguments: tuple[str, ...] = ()
    """The arguments of the partitioner, such as ["partition_by=label", "alpha=0.5"]; num_partitions is `clients`."""
    input: str | None = None
    """The column of the inputs. Unset: the first of image, img, x, features and text that exists."""
    target: str | None = None
    """The column of the targets. Unset: the first of label, labels, character, y and target that exists."""
    split: str = "train"
    """The split whose samples the clients get."""
    test_split: str | None = "test"
    """The split with the test set. If it does not exist, the share `test` of every client's samples is the test set."""
    test: Share | None = None
    """If there is no `test_split`: the share of each client's samples in the test set. Unset: 0.2; with `trusted`, 0.25
    of the trusted clients'."""
    filtering: Share | None = None
    """The share of each client's samples outside the test set in the filtering set; 0 leaves nothing to filter with.
    Unset: 0.1; with `trusted`, 0.5 of the trusted clients'."""

    def read(self, seed: int) -> FederatedData:
        if not self.dataset:
            raise ConfigError("data.dataset is not set; set it to the name of a dataset on the hub, or to a folder")
        return self.federated(*self._load(seed), seed)

    def federated(self, partitions: Sequence[Table], test: Table | None, seed: int) -> FederatedData:
        """Convert tables of a Hugging Face dataset, one per client, to federated data."""
        columns = list(partitions[0].column_names)
        x_column = find_column("data.input", self.input, INPUTS, columns)
        y_column = find_column("data.target", self.target, TARGETS, columns)
        tables = [*partitions, *([test] if test is not None else [])]
        x, (y, classes), owners = (
            _inputs(tables, x_column),
            _targets(tables, y_column),
            _owners(partitions, self.client),
        )
        tested: Any = self.test
        if test is not None:
            tested = (x[len(owners) :], y[len(owners) :])
            if self.client and self.client in test.column_names:
                tested = (*tested, _owners([test], self.client))
            x, y = x[: len(owners)], y[: len(owners)]
        elif x.dtype == np.int8:  # windows of text overlap: the last ones of every client are its test samples
            sizes = [len(table) for table in partitions]
            train, last = _split_by_position(sizes, TEST if self.test is None else self.test, gap=WINDOW)
            tested = (x[last], y[last], owners[last])
            x, y, owners = x[train], y[train], owners[train]
        if test is not None or x.dtype == np.int8:
            own = not_in_test(x, tested[0], self.dataset)
            x, y, owners = x[own], y[own], owners[own]
        data = self.hold_out(x, y, owners, tested, seed)
        named = class_names(partitions[0], y_column) or data.class_names
        return replace(data, classes=classes or data.classes, class_names=named)

    def _load(self, seed: int) -> tuple[list[Table], Table | None]:
        """The tables of the clients and the test table, from flwr-datasets."""
        try:
            from flwr_datasets import FederatedDataset
        except ImportError:
            raise DataError("data.name = \"hub\" needs flwr-datasets: pip install 'filfl[hub]'") from None
        folder = user_path(self.dataset)
        if is_saved(folder):
            return self._load_saved(load_from_disk(folder), seed)
        try:
            source = FederatedDataset(
                dataset=self.dataset, subset=self.subset, partitioners={self.split: self._partitioner(seed)}, seed=seed
            )
            source.load_partition(0, self.split)
            total = source.partitioners[self.split].num_partitions
            chosen = draw_clients(total, self.clients if self.client else None, seed)
            partitions = [source.load_partition(int(k), self.split) for k in chosen]
        except (ConfigError, DataError):
            raise
        except Exception as error:  # the hub, the network and a partitioner can raise any exception
            missing = "" if folder.exists() else f", and there is no folder {self.dataset}"
            reason = f"{type(error).__name__}: {error}"
            raise DataError(f"data.dataset: {self.dataset} cannot be loaded from the hub ({reason}){missing}") from None
        try:
            return partitions, source.load_split(self.test_split) if self.test_split else None
        except (KeyError, ValueError):
            return partitions, None

    def _load_saved(self, dataset: Any, seed: int) -> tuple[list[Table], Table | None]:
        """The same from a dataset that save_to_disk wrote. One without splits has no test table."""
        splits = dataset if isinstance(dataset, Mapping) else {self.split: dataset}
        if self.split not in splits:
            raise ConfigError(f"data.split must be one of {', '.join(splits)} (got {self.split})")
        partitioner = self._partitioner(seed)
        partitioner.dataset = splits[self.split]
        if self.client is None:
            columns = ", ".join(partitioner.dataset.column_names)
            log.warning(
                "data.client is not set, so %s splits the samples into clients; columns: %s", self.partitioner, columns
            )
        try:
            chosen = draw_clients(partitioner.num_partitions, self.clients if self.client else None, seed)
            partitions = [partitioner.load_partition(int(k)) for k in chosen]
        except (KeyError, ValueError) as error:
            raise DataError(f"data.dataset: {self.dataset} cannot be split into clients: {error}") from None
        return partitions, splits.get(self.test_split) if self.test_split else None

    def _partitioner(self, seed: int) -> Any:
        from flwr_datasets import partitioner as kinds

        if self.client:
            return kinds.NaturalIdPartitioner(partition_by=self.client)
        kind = getattr(kinds, self.partitioner, None)
        if kind is None or not self.partitioner.endswith("Partitioner"):
            known = sorted(name for name in dir(kinds) if name.endswith("Partitioner"))
            raise ConfigError(f"data.partitioner must be one of {', '.join(known)} (got {show(self.partitioner)})")
        given = _arguments(self.arguments)
        # Only partitioners that draw take a seed.
        for arguments in ({"seed": seed, **given}, given):
            try:
                return kind(num_partitions=self.clients or 10, **arguments)
            except TypeError as error:
                reason = error
        raise ConfigError(f"data.arguments do not match {self.partitioner}: {reason}")


def _arguments(pairs: Sequence[str]) -> dict[str, Any]:
    arguments: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise ConfigError(f"data.arguments must be like partition_by=label (got {show(pair)})")
        try:
            arguments[key.strip()] = tomllib.loads(f"value = {value}")["value"]
        except ValueError:
            arguments[key.strip()] = value.strip()
    return arguments


def _inputs(tables: Sequence[Table], column: str) -> NDArray[Any]:
    """The inputs of tables: images with channels first, windows of characters, or numbers."""
    values = [value for table in tables for value in table[column]]
    if not values:
        raise DataError(f"column {column} is empty")
    if isinstance(values[0], str):
        if wrong := [i for i, text in enumerate(values) if len(text) != WINDOW]:
            got = f"{len(values[wrong[0]])} in sample {wrong[0]}"
            raise DataError(f"column {column}: strings must have {WINDOW} characters (got {got})")
        return encode_or_warn("".join(values), f"column {column}").reshape(-1, WINDOW)
    return stack_inputs(values, f"column {column}", channels_last=False)


def _targets(tables: Sequence[Table], column: str) -> tuple[NDArray[Any], int]:
    """The targets of tables, and the number of classes if it does not depend on the samples, else 0.

    Single characters have LEAF's codes.
    """
    values = [value for table in tables for value in table[column]]
    if values and all(isinstance(value, str) and len(value) == 1 for value in values):
        return encode_or_warn("".join(values), f"column {column}"), len(ALPHABET)
    return np.asarray(values), len(class_names(tables[0], column))


def _owners(tables: Sequence[Table], by: str | None) -> NDArray[Any]:
    """The client of each sample: the value of a column, or the index of its table."""
    if by is None:
        return np.repeat(np.arange(len(tables)), [len(table) for table in tables])
    return np.array([str(value) for table in tables for value in table[by]])


def _split_by_position(sizes: Sequence[int], share: float, gap: int) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Masks of the training rows and of the last `share` of each table, for concatenated tables of these sizes.

    The `gap` rows between them are in neither: their windows share text with both.
    """
    from_end = np.repeat(np.cumsum(sizes), sizes) - np.arange(sum(sizes))
    tested = np.repeat([floored(share, size) for size in sizes], sizes)
    return (tested == 0) | (from_end > tested + gap), from_end <= tested
