"""The samples of a map-style dataset of PyTorch."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL.Image import Image

from filfl.data.images import channels_first
from filfl.errors import DataError


def is_dataset(value: object) -> bool:
    """Whether this is a map-style dataset; arrays (x, y) and shares are not."""
    return hasattr(value, "__getitem__") and hasattr(value, "__len__") and not isinstance(value, tuple | list)


def read_samples(dataset: Any, channels_last: bool, name: str) -> tuple[NDArray[Any], NDArray[Any], list[Any]]:
    """The inputs and targets of a dataset, and its samples."""
    if not is_dataset(dataset):
        raise DataError(
            f"{name} must have a length and samples by index, as a torch Dataset (got {type(dataset).__name__})"
        )
    samples = [dataset[i] for i in range(len(dataset))]
    if not samples:
        raise DataError(f"{name} is empty")
    if wrong := [i for i, sample in enumerate(samples) if not isinstance(sample, tuple | list) or len(sample) < 2]:
        got = type(samples[wrong[0]]).__name__
        raise DataError(
            f"{name}: samples must be pairs (x, y) (got {got} in sample {wrong[0]}); give a dataset that returns such "
            "pairs (see docs/your-data.md)"
        )
    x = stack_inputs([sample[0] for sample in samples], name, channels_last)
    return x, np.asarray([_scalar(sample[1]) for sample in samples]), samples


def stack_inputs(values: Sequence[Any], name: str, channels_last: bool) -> NDArray[Any]:
    """Samples as one array. Images, of PIL or arrays, get their channels first; grey bytes get one channel."""
    arrays = [np.asarray(value) for value in values]
    if len(shapes := {array.shape: i for i, array in enumerate(arrays)}) > 1:
        listed = ", ".join(f"{list(shape)} in sample {i}" for shape, i in list(shapes.items())[:2])
        raise DataError(f"{name}: the samples must have the same shape (got {listed}); cut, fill or resize them")
    stacked = np.stack(arrays)
    if stacked.dtype.kind not in "buif":
        hint = "; for texts, see FederatedData.from_texts" if isinstance(values[0], str) else ""
        raise DataError(f"{name} must have images or numbers (got {type(values[0]).__name__}){hint}")
    if stacked.ndim == 3 and stacked.dtype == np.uint8:
        return stacked[:, None]
    if isinstance(values[0], Image) and stacked.ndim == 4:
        channels_last = True
    return channels_first(stacked, channels_last)


def clients_of(samples: Sequence[Any], client_of: Sequence[Any] | Callable[[Any], Any]) -> NDArray[Any]:
    """The client of each sample, as given by a list or by a function of a sample."""
    if callable(client_of):
        found = [_scalar(client_of(sample)) for sample in samples]
    else:
        found = [_scalar(client) for client in client_of]
        if len(found) != len(samples):
            raise DataError(f"client_of must have one client per sample (got {len(found)} for {len(samples)} samples)")
    return np.asarray(found, dtype=object if any(isinstance(client, str) for client in found) else None)


def _scalar(value: Any) -> Any:
    """A tensor or array of one number as that number."""
    return value.item() if hasattr(value, "item") and getattr(value, "ndim", 1) == 0 else value
