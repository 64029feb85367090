"""Evaluation of candidates in half precision (bfloat16), where the hardware computes it faster.

What it may decide is in `estimate.py`.
"""

import copy
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from filfl.data.batches import Inputs
from filfl.evaluation import GivenSamples, Loss, Samples, mean_loss
from filfl.filtering.networks import MIN_WORK, Networks
from filfl.weights import FlatModel, Weights

HALF = torch.bfloat16
Precision = Literal["auto", "float32", "bfloat16"]


def computes_fast(device: torch.device) -> bool:
    """Whether the hardware multiplies bfloat16 numbers itself. Where this is not known, it does not."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    known: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()  # older versions of torch do not tell
    return device.type == "cpu" and any(known.get(name, False) for name in ("avx512_bf16", "amx_bf16"))


def pays(precision: Precision, net: FlatModel, samples: int) -> bool:
    """Whether candidates are evaluated in half precision. With "auto", small models are not: they gain nothing."""
    if precision == "auto":
        return computes_fast(net.device) and net.num_parameters * samples >= MIN_WORK and in_float32(net)
    return precision == "bfloat16" and in_float32(net)


def in_float32(net: FlatModel) -> bool:
    return net.layout.dtype == torch.float32


class HalfPrecision:
    """V and the network in half precision."""

    def __init__(self, net: FlatModel, samples: Samples, loss: Loss, at_once: int) -> None:
        first = FlatModel(copy.deepcopy(net.module).to(HALF), net.device)
        first.use_frozen([value.to(HALF) if value.is_floating_point() else value for value in net.frozen])
        self.at_once = at_once
        self._networks = Networks(first, lambda: FlatModel(copy.deepcopy(first.module), net.device), at_once)
        self._samples, self._loss = in_half(samples), loss
        self.loss_of(net.weights().integers, np.arange(1))(net.vector)  # raises where it is not possible

    def loss_of(self, integers: Tensor, rows: NDArray[np.int64] | None = None) -> Callable[[Tensor], float]:
        """Candidate weights -> their loss on V, or on some rows of it."""
        samples = self._samples if rows is None else self._samples.at(torch.from_numpy(rows))

        def loss(vector: Tensor) -> float:
            with self._networks.network() as net:
                weights = Weights(vector, integers)
                return mean_loss(net, weights, samples, lambda z, y: self._loss(z.float(), y))

        return loss

    def each(self, work: Callable[[int], Any], items: Iterable[int]) -> list[Any]:
        return self._networks.each(work, items)

    def close(self) -> None:
        self._networks.close()


def in_half(samples: Samples) -> Samples:
    """The samples with inputs in half precision. Images are stored with the channels last, which is faster here."""
    if isinstance(samples, GivenSamples):
        given: Inputs = samples.given
        halved = {k: _halved(v) for k, v in given.items()} if isinstance(given, dict) else _halved(given)
        return replace(samples, given=halved)
    return replace(samples, x=_halved(samples.inputs(samples.x)))


def _halved(values: Tensor) -> Tensor:
    if not values.is_floating_point():
        return values
    return values.to(HALF, memory_format=torch.channels_last) if values.dim() == 4 else values.to(HALF)
