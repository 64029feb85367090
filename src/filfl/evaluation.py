"""Evaluates a model on samples: loss, outputs, metrics and gradient."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from filfl.errors import PluginError
from filfl.weights import FlatModel, Weights

Augment = Callable[[Tensor, np.random.Generator], Tensor]
"""(inputs of a training batch, rng) -> inputs of the same number of samples."""
Loss = Callable[[Tensor, Tensor], Tensor]
"""(outputs, targets) -> the mean loss of the batch."""
Metric = Callable[[Tensor, Tensor], float]
"""(outputs, targets) of the whole test set -> a number."""

ALIGNED = 64
"""The alignment of torch's own tensors in memory, in bytes."""
CHUNK = 100
"""Samples per forward pass. Chunks of this size stay in a CPU's cache: measured faster than one large batch."""


cross_entropy: Loss = functional.cross_entropy
mean_squared_error: Loss = functional.mse_loss


def accuracy(outputs: Tensor, targets: Tensor) -> float:
    """The share of samples whose largest output is that of the correct class."""
    return float((outputs.argmax(dim=-1) == targets).double().mean())


class ClientAccuracies:
    """The accuracy on the test samples of each client. Samples with owner -1 belong to no client."""

    def __init__(self, owners: NDArray[np.int64]) -> None:
        self._known = np.asarray(owners) >= 0
        self.clients, self._client, self.samples = np.unique(
            owners[self._known], return_inverse=True, return_counts=True
        )
        """The clients that have test samples, and the number of their samples."""

    def __call__(self, outputs: Tensor, targets: Tensor) -> NDArray[np.float64]:
        """The accuracies of `clients`."""
        correct = (outputs.argmax(dim=-1) == targets).cpu().numpy()[self._known]
        return np.bincount(self._client, weights=correct) / self.samples


def by_client(owners: NDArray[np.int64]) -> dict[str, Metric]:
    """Metrics per client, each evaluated on its own test samples: the mean accuracy of the clients, and of the worst
    tenth of them (rounded down, at least one client).

    `owners` is the client of each test sample, -1 if it is not known. If none is known, there are no such metrics.
    """
    accuracies = ClientAccuracies(owners)
    if len(accuracies.clients) == 0:
        return {}
    tenth = max(1, len(accuracies.clients) // 10)
    return {
        "client_accuracy": lambda outputs, targets: float(accuracies(outputs, targets).mean()),
        "worst_tenth": lambda outputs, targets: float(np.sort(accuracies(outputs, targets))[:tenth].mean()),
    }


@dataclass(frozen=True)
class Samples:
    """Samples on a device. In the batch, bytes become `x * scale + shift` and tokens become int64."""

    x: Tensor
    y: Tensor
    scale: Tensor
    shift: Tensor

    def __len__(self) -> int:
        return len(self.y)

    def inputs(self, x: Tensor) -> Any:
        if x.dtype == torch.uint8:
            return x * self.scale + self.shift
        return x if x.is_floating_point() else x.long()

    def batch(self, index: Tensor) -> tuple[Tensor, Tensor]:
        return self.inputs(self.x[index]), self.y[index]

    def chunks(self) -> Iterator[tuple[Any, Tensor]]:
        for start in range(0, len(self), CHUNK):
            chunk = slice(start, start + CHUNK)
            x = self.inputs(self.x[chunk])
            # The last bit of a matrix product can depend on the alignment of a tensor, so it is always that of torch.
            yield x.clone() if isinstance(x, Tensor) and x.data_ptr() % ALIGNED else x, self.y[chunk]

    def aligned(self) -> "Samples":
        """The same samples, aligned so that `chunks` need not copy."""
        return self if self.x.data_ptr() % ALIGNED == 0 else replace(self, x=self.x.clone())

    def part(self, start: int, stop: int) -> "Samples":
        return replace(self, x=self.x[start:stop], y=self.y[start:stop])

    def at(self, rows: Tensor) -> "Samples":
        """The samples of these rows, in this order."""
        return replace(self, x=self.x[rows.to(self.x.device)], y=self.y[rows.to(self.y.device)])

    def augmented(self, augment: Augment, rng: np.random.Generator) -> "AugmentedSamples":
        """The same samples, whose batches are changed by a function."""
        return AugmentedSamples(self.x, self.y, self.scale, self.shift, augment, rng)

    def without_targets(self) -> "Samples":
        """The same inputs without targets, for a client that has to predict them."""
        return replace(self, y=self.y.new_empty(len(self), 0))

    def arrays(self) -> dict[str, Tensor]:
        """The inputs and how they become a batch, by name: what a client is sent."""
        return {"x": self.x, "scale": self.scale, "shift": self.shift}

    @property
    def num_bytes(self) -> int:
        """The size of the inputs in a message."""
        return self.x.nbytes


@dataclass(frozen=True)
class GivenSamples(Samples):
    """Samples whose inputs the model is given as they are: one tensor, or several by name. `x` is the row of each
    sample in them."""

    given: Tensor | dict[str, Tensor]

    @classmethod
    def of(cls, given: Tensor | dict[str, Tensor], y: Tensor) -> "GivenSamples":
        return cls(torch.arange(len(y), device=y.device), y, torch.tensor(1.0), torch.tensor(0.0), given)

    def inputs(self, x: Tensor) -> Any:
        if isinstance(self.given, Tensor):
            return self.given[x]
        return {name: values[x] for name, values in self.given.items()}

    def arrays(self) -> dict[str, Tensor]:
        if isinstance(self.given, Tensor):
            return {"given": self.given}
        return {f"given.{name}": values for name, values in self.given.items()}

    @property
    def num_bytes(self) -> int:
        return sum(values.nbytes for values in self.arrays().values())


def received_samples(arrays: Mapping[str, Tensor], device: torch.device) -> Samples:
    """The samples that `Samples.arrays` gave, without targets, on a device."""
    parts = {name: values.to(device) for name, values in arrays.items()}
    first = next(iter(parts.values()))
    y = first.new_empty(len(first), 0)
    if "x" in parts:
        return Samples(parts["x"], y, parts["scale"], parts["shift"])
    named = {name.removeprefix("given."): values for name, values in parts.items()}
    return GivenSamples.of(parts.get("given", named), y)


@dataclass(frozen=True)
class AugmentedSamples(Samples):
    """Samples for training. The inputs of every batch are changed by the user's function."""

    augment: Augment
    rng: np.random.Generator

    def batch(self, index: Tensor) -> tuple[Tensor, Tensor]:
        x, y = super().batch(index)
        changed: object = self.augment(x, self.rng)
        if not isinstance(changed, Tensor) or changed.shape[:1] != y.shape[:1]:
            got = f"{list(changed.shape)}" if isinstance(changed, Tensor) else type(changed).__name__
            raise PluginError(
                f"augment must return a tensor with as many samples as it was given ({len(y)}; got {got})"
            )
        return changed, y


def predict(module: nn.Module, x: Any) -> Tensor:
    """The outputs of a module for a batch of inputs: one tensor, or several by name. An output of Hugging Face has them
    as its `logits`."""
    made = module(**x) if isinstance(x, dict) else module(x)
    z = made if isinstance(made, Tensor) else getattr(made, "logits", None)
    if not isinstance(z, Tensor):
        raise PluginError(
            "the model must return a tensor, or an object whose logits are one, as those of Hugging Face (got "
            f"{type(made).__name__})"
        )
    return z


def _forward(model: FlatModel, weights: Weights, samples: Samples) -> Iterator[tuple[Tensor, Tensor]]:
    """The outputs and targets of each chunk of samples, in evaluation mode."""
    model.load(weights)
    if model.module.training:
        model.module.eval()
    for x, y in samples.chunks():
        yield predict(model.module, x), y


@torch.no_grad()
def mean_loss(model: FlatModel, weights: Weights, samples: Samples, loss: Loss) -> float:
    """F_V(w) = 1/m sum_j l(w; x_j)."""
    total = sum(len(y) * float(loss(outputs, y)) for outputs, y in _forward(model, weights, samples))
    return total / len(samples)


@torch.no_grad()
def outputs(model: FlatModel, weights: Weights, samples: Samples) -> Tensor:
    """The outputs of the model for every sample: [m, ...]."""
    return torch.cat([outputs for outputs, _ in _forward(model, weights, samples)])


@torch.no_grad()
def sample_losses(loss: Loss, outputs: Tensor, targets: Tensor) -> Tensor:
    """The loss of each sample: [m]. A loss that is not a mean over samples is evaluated on batches of one sample."""
    if loss in (cross_entropy, mean_squared_error):
        losses: Tensor = loss(outputs, targets, reduction="none")  # type: ignore[call-arg]
        return losses.flatten(1).mean(dim=1) if losses.ndim > 1 else losses
    try:
        each: Tensor = torch.vmap(lambda z, y: loss(z[None], y[None]))(outputs, targets)
        return each
    except RuntimeError:  # a loss that depends on the values of tensors cannot be batched
        return torch.stack([loss(z[None], y[None]) for z, y in zip(outputs, targets, strict=True)])


@torch.no_grad()
def score(
    model: FlatModel, weights: Weights, samples: Samples, loss: Loss, metrics: Mapping[str, Metric]
) -> tuple[float, dict[str, float]]:
    """The mean loss and all metrics on the samples, in one pass."""
    chunks = list(_forward(model, weights, samples))
    mean = sum(len(y) * float(loss(outputs, y)) for outputs, y in chunks) / len(samples)
    all_outputs = torch.cat([outputs for outputs, _ in chunks])
    return mean, {name: _number(name, metric, all_outputs, samples.y) for name, metric in metrics.items()}


def _number(name: str, metric: Metric, outputs: Tensor, targets: Tensor) -> float:
    try:
        return float(metric(outputs, targets))
    except Exception as error:
        shapes = f"outputs {list(outputs.shape)} and targets {list(targets.shape)}"
        raise PluginError(
            f"the metric {name} does not fit the data ({shapes}, from which it must make a number): "
            f"{type(error).__name__}: {error}"
        ) from error


def full_gradient(model: FlatModel, weights: Weights, samples: Samples, loss: Loss) -> Tensor:
    """The gradient of the mean loss over all samples, as a flat vector."""
    total = torch.zeros_like(model.vector[: model.layout.num_trained])
    for outputs, y in _forward(model, weights, samples):
        part = loss(outputs, y) * (len(y) / len(samples))
        gradients = torch.autograd.grad(part, model.trained, materialize_grads=True)
        total += torch.cat([gradient.flatten() for gradient in gradients])
    return total
