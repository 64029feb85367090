"""How a client's logits on V are encoded for sending."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from filfl.weights import Mismatch

Precision = Literal["float32", "float16", "int8"]

MAX_OUTPUT = 60_000.0
"""Larger outputs are refused: float16 ends soon after, and a model with such outputs has diverged."""
LEVELS = 127
"""int8 values range from -127 to 127."""
DTYPES = {"float32": torch.float32, "float16": torch.float16, "int8": torch.int8}


@dataclass(frozen=True)
class EncodedLogits:
    """A client's outputs for m samples as they are sent, one row per sample."""

    values: Tensor
    """[m, width], in the precision of the `Encoding`."""
    scales: Tensor | None = None
    """[m], only with int8: the step between two values of a row."""
    classes: Tensor | None = None
    """[m, width], only with `top`: the classes that the values belong to."""


@dataclass(frozen=True)
class Encoding:
    """Precision and number of classes of the logits that are sent.

    precision: float32 and float16 as they are. int8: round(v / s) with s = max |v| / 127 per sample, and s as float32:
        one byte per value and four bytes per sample.
    top: send only the log-probabilities of each sample's most likely classes, this many of them, and which classes
        they are (one byte each; two with more than 256 classes, four with more than 32,768). The remaining probability
        is split evenly over the other classes. For losses such as cross-entropy, for which log-probabilities are as
        good as logits.
    """

    precision: Precision = "float32"
    top: int | None = None

    def num_bytes(self, shape: tuple[int, ...]) -> int:
        """Encoded size of outputs of this shape [m, ...]."""
        m, outputs = shape[0], math.prod(shape[1:])
        width = self.top or outputs
        per_value = DTYPES[self.precision].itemsize + (class_dtype(outputs).itemsize if self.top else 0)
        return m * (width * per_value + (4 if self.precision == "int8" else 0))

    def encode(self, outputs: Tensor) -> EncodedLogits:
        """Encode outputs [m, ...]."""
        values, classes = as_rows(outputs), None
        if self.top:
            # A sample with one non-finite output has no usable probabilities at all.
            broken = ~values.isfinite().all(dim=1, keepdim=True)
            values, chosen = values.log_softmax(dim=1).masked_fill(broken, math.nan).topk(self.top, dim=1)
            classes = chosen.to(class_dtype(outputs.shape[1]))
        if self.precision != "int8":
            return EncodedLogits(values.to(DTYPES[self.precision]), None, classes)
        scales = int8_scales(values)
        return EncodedLogits(_int8_values(values, scales[:, None]).to(torch.int8), scales, classes)

    def decode(self, encoded: EncodedLogits, shape: tuple[int, ...], device: torch.device) -> Tensor:
        """The outputs [m, ...], up to rounding; raises `Mismatch` where `encoded` cannot be such outputs."""
        if not isinstance(encoded, EncodedLogits):
            raise Mismatch(f"the logits are a {type(encoded).__name__}")
        m, outputs = shape[0], math.prod(shape[1:])
        width = (m, self.top or outputs)
        _check("logits", encoded.values, width, DTYPES[self.precision])
        _check("scales", encoded.scales, (m,), torch.float32 if self.precision == "int8" else None)
        _check("classes", encoded.classes, width, class_dtype(outputs) if self.top else None)
        values = encoded.values.to(device).float()
        if encoded.scales is not None:
            values = values * encoded.scales.to(device)[:, None]
        if not values.isfinite().all():
            raise Mismatch("the logits have a value that is not finite")
        if values.numel() and float(values.abs().max()) > MAX_OUTPUT:
            raise Mismatch(f"the logits must be at most {MAX_OUTPUT:g} (got {float(values.abs().max()):.3g})")
        if encoded.classes is None:
            return values.reshape(shape)
        return _all_classes(values, encoded.classes.to(device).long(), outputs)

    def round(self, values: Tensor, scales: Tensor | None) -> Tensor:
        """The values after encoding and decoding, in the steps of given int8 scales."""
        if scales is None:
            return values.to(DTYPES[self.precision]).float()
        return _int8_values(values, scales) * scales


def class_dtype(classes: int) -> torch.dtype:
    """The smallest integer type that can number so many classes."""
    return torch.uint8 if classes <= 256 else torch.int16 if classes <= 32_768 else torch.int32


def as_rows(outputs: Tensor) -> Tensor:
    return outputs.reshape(len(outputs), -1).float()


def int8_scales(values: Tensor) -> Tensor:
    return values.abs().amax(dim=1) / LEVELS


def _int8_values(values: Tensor, scales: Tensor) -> Tensor:
    steps = (values / scales.clamp(min=torch.finfo(torch.float32).tiny)).round()
    # Integers cannot represent non-finite values; these show in the scale instead.
    return steps.nan_to_num().clamp(-LEVELS, LEVELS)


def _check(name: str, tensor: Tensor | None, shape: tuple[int, ...], dtype: torch.dtype | None) -> None:
    """Raise `Mismatch` unless a part of a reply is as the encoding requires (`dtype` None: it must be absent)."""
    if dtype is None:
        if tensor is not None:
            raise Mismatch(f"the reply has {name} that were not requested")
        return
    if not isinstance(tensor, Tensor):
        raise Mismatch(f"the {name} are missing")
    if tuple(tensor.shape) != shape:
        raise Mismatch(f"the {name} have shape {tuple(tensor.shape)} instead of {shape}")
    if tensor.dtype != dtype:
        raise Mismatch(f"the {name} have dtype {tensor.dtype} instead of {dtype}")


def _all_classes(log_probabilities: Tensor, classes: Tensor, outputs: int) -> Tensor:
    """Log-probabilities of all classes, from those of the most likely ones."""
    if classes.numel() and not 0 <= int(classes.min()) <= int(classes.max()) < outputs:
        raise Mismatch(f"the classes must be below {outputs} (got {int(classes.min())} to {int(classes.max())})")
    if bool((classes.sort(dim=1).values.diff(dim=1) == 0).any()):
        raise Mismatch("a sample lists a class twice")
    total = log_probabilities.exp().sum(dim=1, keepdim=True)
    if bool((total > 2).any()):  # int8 may round a sum of 1 up to almost 2
        raise Mismatch(f"the probabilities of a sample add up to {float(total.max()):.3g}")
    # A class that was left out is at most as likely as the least likely class that was sent, and never impossible.
    others = ((1 - total) / max(1, outputs - log_probabilities.shape[1])).clamp(min=1e-9).log()
    rest = torch.minimum(others, log_probabilities.amin(dim=1, keepdim=True))
    return rest.expand(-1, outputs).scatter(1, classes, log_probabilities)
