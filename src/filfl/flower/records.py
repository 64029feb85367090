"""Conversion between Flower's records, which hold arrays by name, and weights, which are one flat vector.

Arrays are sent as npy, never as pickle.
"""

import copy
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from io import BytesIO
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.common.constant import SType
from numpy.lib.format import read_array_header_1_0, read_magic
from torch import Tensor

from filfl.errors import ConfigError
from filfl.weights import Entry, Layout, Mismatch, Weights


def layout_of(arrays: ArrayRecord) -> Layout:
    """The layout of a model of which only the arrays are known: all floating-point arrays count as trained."""
    entries: list[Entry] = []
    ends = {False: 0, True: 0}
    for name, array in arrays.items():
        dtype = torch.from_numpy(np.empty(0, dtype=array.dtype)).dtype
        integer = not dtype.is_floating_point
        start, size = ends[integer], int(np.prod(array.shape, dtype=np.int64))
        entries.append(Entry(name, tuple(array.shape), dtype, start, start + size))
        ends[integer] += size
    dtypes = {entry.dtype for entry in entries if not entry.integer}
    if len(dtypes) != 1:
        found = ", ".join(sorted(map(str, dtypes))) or "none"
        raise ConfigError(f"initial_arrays: the floating-point arrays must all have one dtype (got {found})")
    return Layout(tuple(entries), ends[False], ends[False], ends[True], dtypes.pop())


def to_arrays(weights: Weights, layout: Layout) -> ArrayRecord:
    return ArrayRecord(layout.unflatten(weights))


def to_weights(arrays: ArrayRecord, layout: Layout) -> Weights:
    """Raises `Mismatch` where the arrays do not have this layout."""
    return layout.flatten(arrays.to_torch_state_dict())


def aggregated(arrays: ArrayRecord, layout: Layout) -> Weights:
    """The weights that a Flower strategy returns. Its mean changes the types of integers and float16; restore them."""
    values = arrays.to_torch_state_dict()
    for entry in layout.entries:
        value = values.get(entry.name)
        if value is not None and value.dtype != entry.dtype:
            values[entry.name] = (value.round() if entry.integer else value).to(entry.dtype)
    return layout.flatten(values)


def with_integers(arrays: ArrayRecord, layout: Layout) -> ArrayRecord:
    """The record itself, or a copy in which the integers of the model are integers again."""
    changed = {}
    for entry in layout.entries:
        if entry.integer and np.dtype(arrays[entry.name].dtype).kind == "f":
            values = torch.from_numpy(arrays[entry.name].numpy()).round().to(entry.dtype)
            changed[entry.name] = Array(values.numpy())
    return ArrayRecord({**arrays, **changed}) if changed else arrays


def in_other_types(arrays: ArrayRecord, layout: Layout) -> dict[str, Tensor]:
    """The arrays whose type is not that of the model, by name."""
    types = {entry.name: str(entry.dtype).removeprefix("torch.") for entry in layout.entries}
    return {name: torch.from_numpy(array.numpy()) for name, array in arrays.items() if array.dtype != types[name]}


def to_gradient(arrays: ArrayRecord, layout: Layout) -> Tensor:
    """Gradients by name as a vector [num_trained]; zero for parameters that were not sent."""
    nothing = layout.unflatten(layout.empty())
    return layout.flatten({**nothing, **arrays.to_torch_state_dict()}).vector[: layout.num_trained]


def size_of(message: Message) -> int:
    """The size of the arrays in a reply, even if other parts of it are malformed."""
    with suppress(Exception):
        return sum(len(array.data) for arrays in message.content.array_records.values() for array in arrays.values())
    return 0


def one(records: Mapping[str, Any], kind: str) -> Any:
    """The only record of a kind in a reply; its name does not matter."""
    if len(records) != 1:
        raise Mismatch(f"the reply has {len(records)} records of {kind} instead of one")
    return next(iter(records.values()))


class DecodedOnAccess(Mapping[str, Tensor]):
    """Arrays of a message by name, each a view of the bytes of the message, so that nothing is copied before it is
    checked. Floating-point numbers in another type than the model's are converted: Flower averages them as well."""

    def __init__(self, arrays: ArrayRecord, layout: Layout) -> None:
        self.arrays = arrays
        self._float = layout.dtype
        self._floats = {entry.name for entry in layout.entries if not entry.integer}

    def __getitem__(self, name: str) -> Tensor:
        tensor = decoded(self.arrays[name])
        return tensor.to(self._float) if name in self._floats and tensor.is_floating_point() else tensor

    def __contains__(self, name: object) -> bool:
        return name in self.arrays

    def __iter__(self) -> Iterator[str]:
        return iter(self.arrays)

    def __len__(self) -> int:
        return len(self.arrays)


def decoded(array: Array) -> Tensor:
    """The numbers of an array in a message, without a copy where they are stored as numpy stores them by default."""
    file = BytesIO(array.data)
    with warnings.catch_warnings():
        # The bytes of a message are read-only, and nothing here writes to them.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        if array.stype != SType.NUMPY or read_magic(file) != (1, 0):
            return torch.from_numpy(array.numpy())
        shape, by_column, dtype = read_array_header_1_0(file)
        if by_column or dtype.hasobject or not dtype.isnative:
            return torch.from_numpy(array.numpy())
        if min(shape, default=0) < 0:  # numpy.frombuffer and reshape would take -1 for "the rest"
            raise Mismatch(f"an array has the shape {shape}")
        count = math.prod(shape)
        return torch.from_numpy(np.frombuffer(array.data, dtype, count, file.tell()).reshape(shape))


def arrays_of(reply: Message, name: str) -> tuple[str, ArrayRecord]:
    """The arrays of the model in a reply, and the name of their record: the only one, or the one with this name."""
    return _chosen(reply.content.array_records, "arrays", lambda key, _: key == name)


def metrics_of(reply: Message, weighted_by: str) -> tuple[str, MetricRecord]:
    """The metrics in a reply, and the name of their record: the only one, or the one with the number of examples."""
    return _chosen(reply.content.metric_records, "metrics", lambda _, record: weighted_by in record)


def with_metrics(reply: Message, numbers: Mapping[str, float], weighted_by: str) -> Message:
    """The reply itself, or a copy with only those of its numbers that are among these."""
    key, metrics = metrics_of(reply, weighted_by)
    kept = {k: v for k, v in metrics.items() if k == weighted_by or isinstance(v, list) or k in numbers}
    if len(kept) == len(metrics):
        return reply
    copied = copy.copy(reply)
    copied.content = RecordDict({**reply.content, key: MetricRecord(kept)})
    return copied


def _chosen(records: Mapping[str, Any], kind: str, wanted: Callable[[str, Any], bool]) -> tuple[str, Any]:
    found = {key: record for key, record in records.items() if len(records) == 1 or wanted(key, record)}
    if len(found) != 1:
        raise Mismatch(f"the reply has {len(found) or len(records)} records of {kind} instead of one")
    return next(iter(found.items()))
