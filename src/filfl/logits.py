"""What clients say to V, as it is sent: logits in few bytes, and whether given weights say the same."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from filfl.weights import Mismatch

Precision = Literal["float32", "float16", "int8"]

LARGEST = 60_000.0
"""No output is larger: float16 ends soon after, and a model that says such a thing has diverged."""
ARITHMETIC = 0.01
"""How far two machines may be apart over the same weights and sample, as a share of the sample's largest output, but of
no less than 1 and no more than `ROOM`. Measured: see docs/logits.md."""
ROOM = 50.0
"""Larger outputs make no more room: whoever uploads weights decides how large these are."""
LOSS_ROOM = 0.005
"""How far the mean loss on V by a claim may be from that by the weights, as a share of the latter (of 1 where that is
smaller). Measured: see docs/logits.md."""
LEVELS = 127
"""int8 counts from -127 to 127."""
DTYPES = {"float32": torch.float32, "float16": torch.float16, "int8": torch.int8}


@dataclass(frozen=True)
class Packed:
    """A client's outputs on m samples as they are sent, one row a sample."""

    values: Tensor
    """[m, width], in the precision of the `Form`."""
    scales: Tensor | None = None
    """[m], only with int8: what one count of the row is worth."""
    classes: Tensor | None = None
    """[m, width], only with `top`: which classes the values are about."""


@dataclass(frozen=True)
class Form:
    """How outputs are written down.

    precision: float32 and float16 as they are. int8: round(v / s) with s = max |v| / 127 of each sample, and s as
        float32: as many bytes as numbers, and four a sample.
    top: only the log-probabilities of each sample's so many most likely classes, and which these are (in one byte, with
        more than 256 classes in two, with more than 32,768 in four). What is left of the probability is shared evenly
        by the other classes. For losses such as cross-entropy, to which log-probabilities are as good as logits.
    """

    precision: Precision = "float32"
    top: int | None = None

    def num_bytes(self, shape: tuple[int, ...]) -> int:
        """What the outputs of this shape [m, ...] weigh on the wire."""
        m, outputs = shape[0], math.prod(shape[1:])
        width = self.top or outputs
        each = DTYPES[self.precision].itemsize + (class_dtype(outputs).itemsize if self.top else 0)
        return m * (width * each + (4 if self.precision == "int8" else 0))

    def pack(self, outputs: Tensor) -> Packed:
        """Outputs [m, ...] as they are sent."""
        values, classes = _rows(outputs), None
        if self.top:
            # A model that is broken for one class is broken: nothing of the sample is worth telling.
            broken = ~values.isfinite().all(dim=1, keepdim=True)
            values, chosen = values.log_softmax(dim=1).masked_fill(broken, math.nan).topk(self.top, dim=1)
            classes = chosen.to(class_dtype(outputs.shape[1]))
        if self.precision != "int8":
            return Packed(values.to(DTYPES[self.precision]), None, classes)
        scales = _scales(values)
        return Packed(_counts(values, scales[:, None]).to(torch.int8), scales, classes)

    def unpack(self, packed: Packed, shape: tuple[int, ...], device: torch.device) -> Tensor:
        """The outputs [m, ...] that were packed, to rounding; raises `Mismatch` where these cannot be any."""
        if not isinstance(packed, Packed):
            raise Mismatch(f"the logits are a {type(packed).__name__}")
        m, outputs = shape[0], math.prod(shape[1:])
        width = (m, self.top or outputs)
        _check("logits", packed.values, width, DTYPES[self.precision])
        _check("scales", packed.scales, (m,), torch.float32 if self.precision == "int8" else None)
        _check("classes", packed.classes, width, class_dtype(outputs) if self.top else None)
        values = packed.values.to(device).float()
        if packed.scales is not None:
            values = values * packed.scales.to(device)[:, None]
        if not values.isfinite().all():
            raise Mismatch("the logits have a value that is not finite")
        if values.numel() and float(values.abs().max()) > LARGEST:
            raise Mismatch(f"the logits go up to {float(values.abs().max()):.3g}, and {LARGEST:g} is the most")
        if packed.classes is None:
            return values.reshape(shape)
        return _spread_out(values, packed.classes.to(device).long(), outputs)

    def lie(self, packed: Packed, outputs: Tensor) -> str | None:
        """Why weights that say `outputs` [m, ...] cannot be those of whoever sent `packed`; None where they can.

        It must be what packing makes of outputs that are within the slack of these.
        """
        exact = _rows(outputs)
        if not exact.isfinite().all():
            return "its weights say something that is not finite"
        slack = ARITHMETIC * exact.abs().amax(dim=1, keepdim=True).clamp(min=1.0, max=ROOM)
        if self.top and packed.classes is not None:
            of = packed.classes.to(exact.device).long()
            exact, slack = exact.log_softmax(dim=1), 2 * slack  # a class and the sum of all may be off, either way
            least = exact.topk(self.top, dim=1).values[:, -1:]
            exact = exact.gather(1, of)
            if bool((exact < least - slack).any()):
                return "its weights find other classes likely than it claimed"
        claimed, scales = packed.values.to(exact.device).float(), None
        if packed.scales is not None:
            scales = packed.scales.to(exact.device)[:, None]
            claimed = claimed * scales
            if bool(((scales - _scales(exact)[:, None]).abs() > 1.001 * slack / LEVELS).any()):
                return "its weights do not say what it claimed: int8 counts in other steps"
        low, high = self._rounded(exact - slack, scales), self._rounded(exact + slack, scales)
        beyond = torch.maximum(low - claimed, claimed - high)
        if bool((beyond <= 0).all()):
            return None
        j, c = divmod(int(beyond.argmax()), beyond.shape[1])
        return (
            f"its weights do not say what it claimed: {float(exact[j, c]):.4g} instead of {float(claimed[j, c]):.4g} "
            f"to sample {j} of V"
        )

    def _rounded(self, values: Tensor, scales: Tensor | None) -> Tensor:
        """What packing makes of values, in the steps of a claim."""
        if scales is None:
            return values.to(DTYPES[self.precision]).float()
        return _counts(values, scales) * scales


def class_dtype(classes: int) -> torch.dtype:
    """The smallest type that numbers so many classes."""
    return torch.uint8 if classes <= 256 else torch.int16 if classes <= 32_768 else torch.int32


def _rows(outputs: Tensor) -> Tensor:
    return outputs.reshape(len(outputs), -1).float()


def _scales(values: Tensor) -> Tensor:
    return values.abs().amax(dim=1) / LEVELS


def _counts(values: Tensor, scales: Tensor) -> Tensor:
    counts = (values / scales.clamp(min=torch.finfo(torch.float32).tiny)).round()
    # What is not finite shows in the scale: an integer cannot say it.
    return counts.nan_to_num().clamp(-LEVELS, LEVELS)


def _check(what: str, tensor: Tensor | None, shape: tuple[int, ...], dtype: torch.dtype | None) -> None:
    """Whether a part of an answer is there, or not, as its form says (`dtype` None: it is not)."""
    if dtype is None:
        if tensor is not None:
            raise Mismatch(f"there are {what} that nobody asked for")
        return
    if not isinstance(tensor, Tensor):
        raise Mismatch(f"the {what} are missing")
    if tuple(tensor.shape) != shape:
        raise Mismatch(f"the {what} have shape {tuple(tensor.shape)} instead of {shape}")
    if tensor.dtype != dtype:
        raise Mismatch(f"the {what} have dtype {tensor.dtype} instead of {dtype}")


def _spread_out(logs: Tensor, classes: Tensor, outputs: int) -> Tensor:
    """The log-probabilities of some classes as those of all."""
    if classes.numel() and not 0 <= int(classes.min()) <= int(classes.max()) < outputs:
        raise Mismatch(f"there are classes beyond the {outputs} of the model")
    if bool((classes.sort(dim=1).values.diff(dim=1) == 0).any()):
        raise Mismatch("a class stands twice in a row")
    total = logs.exp().sum(dim=1, keepdim=True)
    if bool((total > 2).any()):  # int8 may round a sum of 1 up to nearly so much
        raise Mismatch(f"the probabilities of a sample add up to {float(total.max()):.3g}")
    # Nobody who was left out is more likely than the last who was not, and everybody has a little.
    others = ((1 - total) / max(1, outputs - logs.shape[1])).clamp(min=1e-9).log()
    rest = torch.minimum(others, logs.amin(dim=1, keepdim=True))
    return rest.expand(-1, outputs).scatter(1, classes, logs)
