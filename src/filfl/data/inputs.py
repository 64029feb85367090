"""The inputs of a trained model: what it was trained on, and new samples in the same form."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from filfl.data.federated import FederatedData
from filfl.data.samples import as_inputs
from filfl.errors import DataError
from filfl.evaluation import Samples

INPUTS = "inputs"
"""The key of the model's inputs in summary.json."""


@dataclass(frozen=True)
class Inputs:
    """The form of the samples that a model was trained on. Bytes become `x * scale + shift` in the batch."""

    shape: tuple[int, ...]
    dtype: str
    classes: int
    """The number of classes; 0 if the targets are numbers."""
    scale: Any
    """A number, or nested lists of numbers."""
    shift: Any

    @classmethod
    def of(cls, data: FederatedData) -> "Inputs":
        return cls(data.sample_shape, str(data.x.dtype), data.classes, data.scale.tolist(), data.shift.tolist())

    @classmethod
    def read(cls, table: Mapping[str, Any]) -> "Inputs":
        return cls(**{**table, "shape": tuple(table["shape"])})

    def table(self) -> dict[str, Any]:
        """The JSON from which `read` makes these inputs again."""
        return {**asdict(self), "shape": list(self.shape)}

    def batches(self, x: ArrayLike, dtype: torch.dtype, device: torch.device) -> Iterator[Tensor]:
        """New samples, in the form in which the data was given, as batches for a model of this dtype."""
        array = as_inputs("x", x)
        if self.shape == (1, *array.shape[1:]) and array.ndim == 3:
            array = array[:, None]  # grey images without a channel
        if array.shape[1:] != self.shape or _kind(array.dtype) != _kind(np.dtype(self.dtype)):
            raise DataError(
                f"x must be samples like those of the run, {self.dtype}{list(self.shape)} "
                f"(got {array.dtype}{list(array.shape[1:])})"
                + ("; a single sample is x[None]" if array.shape == self.shape else "")
            )
        samples = torch.tensor(array, device=device)
        samples = samples.to(dtype) if samples.is_floating_point() else samples
        scale, shift = (torch.tensor(each, dtype=dtype, device=device) for each in (self.scale, self.shift))
        yield from (batch for batch, _ in Samples(samples, samples.new_empty(len(samples), 0), scale, shift).chunks())


def _kind(dtype: np.dtype[Any]) -> str:
    return "bytes" if dtype == np.uint8 else "numbers" if dtype.kind == "f" else "tokens"
