"""Running a model on samples: its loss, its outputs, its metrics."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from filfl.weights import FlatModel, Weights

Loss = Callable[[Tensor, Tensor], Tensor]
"""(outputs, targets) -> the mean loss over the batch."""
Metric = Callable[[Tensor, Tensor], float]
"""(outputs, targets) -> a number, on the whole test set at once."""

ALIGNED = 64
"""Bytes: torch's own tensors begin at multiples of them."""
CHUNK = 100
"""Samples a forward pass. Chunks of this size stay in a CPU's cache: measured faster than one large batch."""


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(outputs, targets)


def mean_squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.mse_loss(outputs, targets)


def accuracy(outputs: Tensor, targets: Tensor) -> float:
    """The share of samples whose largest output is the right class."""
    return float((outputs.argmax(dim=-1) == targets).double().mean())


def by_client(owners: NDArray[np.int64]) -> dict[str, Metric]:
    """The accuracy as clients see it, each on its own test samples: the mean over the clients, and over the worst tenth
    of them (rounded down, at least one client). `owners` says whose each test sample is, -1 is nobody's; where it says
    nothing, there are no such metrics."""
    known = np.asarray(owners) >= 0
    if not known.any():
        return {}
    _, client = np.unique(owners[known], return_inverse=True)
    sizes = np.bincount(client)

    def each(outputs: Tensor, targets: Tensor) -> NDArray[np.float64]:
        right = (outputs.argmax(dim=-1) == targets).cpu().numpy()[known]
        return np.bincount(client, weights=right) / sizes

    def worst(outputs: Tensor, targets: Tensor) -> float:
        return float(np.sort(each(outputs, targets))[: max(1, len(sizes) // 10)].mean())

    return {"client_accuracy": lambda outputs, targets: float(each(outputs, targets).mean()), "worst_tenth": worst}


@dataclass(frozen=True)
class Samples:
    """Samples on a device. Bytes stay bytes until the batch, then become `x * scale + shift`; tokens become int64."""

    x: Tensor
    y: Tensor
    scale: Tensor
    shift: Tensor

    def __len__(self) -> int:
        return len(self.y)

    def inputs(self, x: Tensor) -> Tensor:
        if x.dtype == torch.uint8:
            return x * self.scale + self.shift
        return x if x.is_floating_point() else x.long()

    def batch(self, index: Tensor) -> tuple[Tensor, Tensor]:
        return self.inputs(self.x[index]), self.y[index]

    def chunks(self) -> Iterator[tuple[Tensor, Tensor]]:
        for start in range(0, len(self), CHUNK):
            chunk = slice(start, start + CHUNK)
            x = self.inputs(self.x[chunk])
            # Where a tensor begins in memory may change the last bit of a matrix product: always as torch's own do.
            yield x if x.data_ptr() % ALIGNED == 0 else x.clone(), self.y[chunk]

    def aligned(self) -> "Samples":
        """The same samples where their chunks need no copy."""
        return self if self.x.data_ptr() % ALIGNED == 0 else replace(self, x=self.x.clone())

    def part(self, start: int, stop: int) -> "Samples":
        return Samples(self.x[start:stop], self.y[start:stop], self.scale, self.shift)

    def at(self, rows: Tensor) -> "Samples":
        """These samples alone, in this order."""
        return replace(self, x=self.x[rows.to(self.x.device)], y=self.y[rows.to(self.y.device)])

    def without_targets(self) -> "Samples":
        """What may be shown to somebody who has to say the targets."""
        return replace(self, y=self.y.new_empty(len(self), 0))


def _load(model: FlatModel, weights: Weights) -> None:
    """Make a model ready to be evaluated at these weights."""
    model.load(weights)
    if model.module.training:
        model.module.eval()


@torch.no_grad()
def mean_loss(model: FlatModel, weights: Weights, samples: Samples, loss: Loss) -> float:
    """F_V(w) = 1/m sum_j l(w; x_j)."""
    _load(model, weights)
    total = sum(len(y) * float(loss(model.module(x), y)) for x, y in samples.chunks())
    return total / len(samples)


@torch.no_grad()
def outputs(model: FlatModel, weights: Weights, samples: Samples) -> Tensor:
    """What the model says to every sample: [m, ...]."""
    _load(model, weights)
    return torch.cat([model.module(x) for x, _ in samples.chunks()])


@torch.no_grad()
def score(
    model: FlatModel, weights: Weights, samples: Samples, loss: Loss, metrics: Mapping[str, Metric]
) -> tuple[float, dict[str, float]]:
    """The mean loss and every metric on the samples, in one pass."""
    _load(model, weights)
    outputs, total = [], 0.0
    for x, y in samples.chunks():
        outputs.append(model.module(x))
        total += len(y) * float(loss(outputs[-1], y))
    everything = torch.cat(outputs)
    return total / len(samples), {name: float(metric(everything, samples.y)) for name, metric in metrics.items()}


def full_gradient(model: FlatModel, weights: Weights, samples: Samples, loss: Loss) -> Tensor:
    """The gradient of the mean loss over all the samples, as a flat vector."""
    _load(model, weights)
    total = torch.zeros_like(model.vector[: model.layout.num_trained])
    for x, y in samples.chunks():
        gradients = torch.autograd.grad(
            loss(model.module(x), y) * (len(y) / len(samples)), model.trained, materialize_grads=True
        )
        total += torch.cat([gradient.flatten() for gradient in gradients])
    return total
