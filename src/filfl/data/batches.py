"""Samples as a training loop has them: batches of tuples or dicts, as from a DataLoader."""

import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from filfl.data.huggingface import INPUTS, TARGETS
from filfl.data.torch_dataset import is_dataset
from filfl.errors import DataError

MASK = "attention_mask"
"""The input that tells which tokens are padding."""
Inputs = Tensor | dict[str, Tensor]
"""The inputs of a batch: one tensor, or several by the names of the model's arguments."""


def read_samples(x: Any, y: Any, module: nn.Module | None, name: str) -> tuple[Inputs, Tensor]:
    """All inputs and targets of samples: inputs and targets; or, where y is None, batches of both, a dataset, or one
    batch as a dict. `name` is for the errors.

    module: the model that they are for, which decides what its arguments are; None: a dict of inputs stays a dict.
    """
    if y is not None:
        return _inputs(x, module, name), _targets(y, name)
    if isinstance(x, Tensor) or hasattr(x, "__array__"):
        raise DataError(f"{name} has inputs but no targets; give both, or batches of both, such as a DataLoader")
    if not isinstance(x, Mapping) and is_dataset(x):
        x = DataLoader(x, batch_size=100)
    batches = [x] if isinstance(x, Mapping) else x
    if not isinstance(batches, Iterable):
        raise DataError(f"{name} must be arrays x and y, or batches of both (got {type(x).__name__})")
    try:
        pairs = [split_batch(batch, module, name) for batch in batches]
    except TypeError as error:  # of a dataset whose samples torch cannot put together
        reason = str(error).partition(";")[0]
        raise DataError(f"{name}: {reason}; give batches of tensors, such as a DataLoader") from None
    if not pairs:
        raise DataError(f"{name} is empty: there is no batch")
    return _joined([inputs for inputs, _ in pairs], module, name), torch.cat([targets for _, targets in pairs])


def split_batch(batch: Any, module: nn.Module | None, name: str = "a batch") -> tuple[Inputs, Tensor]:
    """The inputs and the targets of a batch: a pair, or a dict as of Hugging Face's and Flower's datasets."""
    if isinstance(batch, Mapping):
        target = next((column for column in TARGETS if column in batch), None)
        if target is None and len(batch) == 2:
            target = [*batch][1]
        if target is None:
            raise DataError(
                f"{name} has the columns {', '.join(map(str, batch))}, and none is named {', '.join(TARGETS)}; rename "
                "the column of the targets, or give pairs (inputs, targets)"
            )
        batch = {column: values for column, values in batch.items() if column != target}, batch[target]
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        got = f"{len(batch)} parts" if isinstance(batch, tuple | list) else type(batch).__name__
        raise DataError(f"{name} must be a pair (inputs, targets), or a dict with both (got {got})")
    return _inputs(batch[0], module, name), _targets(batch[1], name)


def _inputs(x: Any, module: nn.Module | None, name: str) -> Inputs:
    """One tensor; or several by name, where the model takes them by name."""
    if not isinstance(x, Mapping):
        found = _tensor(x)
        if found is None:
            raise DataError(f"{name}: the inputs must be numbers (got {type(x).__name__})")
        return found
    columns = {str(column): tensor for column, values in x.items() if (tensor := _tensor(values)) is not None}
    if not columns:
        raise DataError(f"{name}: no column of the inputs has numbers (got {', '.join(map(str, x))})")
    if module is None:
        return columns
    arguments = inspect.signature(module.forward).parameters.values()
    accepts_any = any(argument.kind == inspect.Parameter.VAR_KEYWORD for argument in arguments)
    names = {argument.name for argument in arguments if argument.kind != inspect.Parameter.VAR_KEYWORD}
    accepted = {column: values for column, values in columns.items() if accepts_any or column in names}
    if len(accepted) > 1:
        return accepted
    one = next((column for column in (*accepted, *INPUTS) if column in columns), None)
    if one is None and len(columns) > 1:
        raise DataError(
            f"{name} has the inputs {', '.join(columns)}, but the model has no arguments of these names; give pairs "
            "(inputs, targets)"
        )
    return columns[one or next(iter(columns))]


def _targets(y: Any, name: str) -> Tensor:
    targets = _tensor(y)
    if targets is None or targets.ndim == 0:
        raise DataError(f"{name}: the targets must be numbers, one per sample; number the classes 0, 1, 2, ...")
    return targets if targets.is_floating_point() else targets.long()


def _tensor(values: Any) -> Tensor | None:
    """Numbers as a tensor; None where they are something else."""
    try:
        if hasattr(values, "__array__") and not isinstance(values, Tensor):
            values = np.require(values, requirements="W")  # the arrays of pandas and JAX are read-only; torch warns
        return torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError):
        return None


def _joined(parts: Sequence[Inputs], module: nn.Module | None, name: str) -> Inputs:
    first = parts[0]
    if isinstance(first, Tensor):
        return _concatenated([part for part in parts if isinstance(part, Tensor)], name)
    named = [part for part in parts if isinstance(part, dict)]
    if MASK in first:
        named = _padded(named, module)
    return {column: _concatenated([part[column] for part in named], name) for column in first}


def _concatenated(parts: Sequence[Tensor], name: str) -> Tensor:
    shapes = list(dict.fromkeys(tuple(part.shape[1:]) for part in parts))
    if len(shapes) > 1:
        raise DataError(
            f"{name}: the batches must have inputs of one shape (got {list(shapes[0])} and {list(shapes[1])} per "
            "sample); pad or resize all samples alike"
        )
    return torch.cat(list(parts))


def _padded(parts: Sequence[dict[str, Tensor]], module: nn.Module | None) -> list[dict[str, Tensor]]:
    """Batches of tokens that were padded to different lengths, padded to the longest, on the side that they are padded
    on and with the same token. Padding is masked, so the model returns the same for them."""
    longest = max(part[MASK].shape[1] for part in parts)
    left = any(bool((part[MASK][:, 0] == 0).any()) for part in parts)
    masked = [part["input_ids"][part[MASK] == 0] for part in parts if "input_ids" in part]
    seen = next((int(tokens[0]) for tokens in masked if len(tokens)), None)
    token = seen if seen is not None else getattr(getattr(module, "config", None), "pad_token_id", None) or 0

    def padded(column: str, values: Tensor, length: int) -> Tensor:
        if values.ndim != 2 or values.shape[1] != length or length == longest:
            return values
        filler = values.new_full((len(values), longest - length), token if column == "input_ids" else 0)
        return torch.cat([filler, values] if left else [values, filler], dim=1)

    return [{column: padded(column, values, part[MASK].shape[1]) for column, values in part.items()} for part in parts]
