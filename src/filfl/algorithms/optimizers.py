"""Local training with any optimiser of torch.optim, by the name of its class."""

import difflib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.optim import Optimizer

from filfl.algorithms.base import Algorithm
from filfl.algorithms.local_sgd import clip_norm_
from filfl.errors import ConfigError
from filfl.evaluation import Loss, Samples
from filfl.weights import FlatModel, Weights

SGD = "SGD"
OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    name: cls
    for name, cls in sorted(vars(torch.optim).items())
    if inspect.isclass(cls) and issubclass(cls, Optimizer) and cls is not Optimizer
}


def default_lr(name: str) -> float:
    """The step size where a config has none: 0.1 for SGD, and torch's own default for the others."""
    return 0.1 if name == SGD else float(inspect.signature(OPTIMIZERS[name]).parameters["lr"].default)


def make_optimizer(name: str, parameters: Sequence[Tensor], lr: float, options: Mapping[str, Any]) -> Optimizer:
    """A new optimiser. Raises `ConfigError` with torch's reason where it does not accept an option or the model."""
    given = {key: tuple(value) if isinstance(value, list) else value for key, value in options.items()}
    try:
        return OPTIMIZERS[name](parameters, lr=lr, **given)
    except (ValueError, TypeError, RuntimeError) as error:
        raise ConfigError(f'training.optimizer = "{name}" cannot be used: {error}') from None


def option_names(name: str) -> list[str]:
    """The options of an optimiser, apart from the step size."""
    return [key for key in inspect.signature(OPTIMIZERS[name]).parameters if key not in ("params", "lr")]


def optimizer_problems(name: str, options: Mapping[str, Any]) -> list[str]:
    """A message for an unknown name, an unknown option, or values that torch refuses."""
    if name not in OPTIMIZERS:
        nearest = _nearest(name, OPTIMIZERS)
        return [
            f'training.optimizer must be a class of torch.optim (got "{name}"); '
            + (f'did you mean "{nearest}"?' if nearest else f"known: {', '.join(OPTIMIZERS)}")
        ]
    if "lr" in options:
        return ["training.options cannot have lr, which is a key of its own; write training.lr"]
    known = option_names(name)
    if unknown := [key for key in options if key not in known]:
        nearest = _nearest(unknown[0], known)
        hint = f"did you mean {nearest}?" if nearest else f"known: {', '.join(known)}"
        return [f"training.options: {name} has no option {unknown[0]}; {hint}"]
    weight = torch.zeros(2, 2, requires_grad=True)
    weight.grad = torch.zeros(2, 2)
    try:
        make_optimizer(name, [weight], default_lr(name), options).step(lambda: 0.0)
    except ConfigError as error:
        return error.problems
    except (ValueError, TypeError, RuntimeError) as error:
        return [f'training.optimizer = "{name}" cannot be used: {error}']
    return []


def _nearest(name: str, known: Mapping[str, object] | Sequence[str]) -> str | None:
    """The known name that is most like this one, whatever its case."""
    lower = {each.lower(): each for each in known}
    found = difflib.get_close_matches(name.lower(), lower, n=1)
    return lower[found[0]] if found else None


def local_optimizer(
    model: FlatModel,
    w_t: Weights,
    samples: Samples,
    loss: Loss,
    algorithm: Algorithm,
    steps: Iterator[NDArray[np.int64]],
    make: Callable[[Sequence[Tensor]], Optimizer],
    clip: float | None,
) -> float:
    """Train `model` from w_t with a new optimiser, one step per batch of `steps`. Returns the mean loss of the batches.

    clip: the largest norm of the gradient, that of the algorithm's penalty included.
    """
    model.load(w_t)
    model.module.train()
    optimizer = make(model.trained)
    losses, sizes = [], []
    for index in steps:
        x, y = samples.batch(torch.from_numpy(index).to(model.device))
        gradient: Callable[[], Any] = partial(_set_gradient, model, w_t, x, y, loss, algorithm, clip)
        losses.append(torch.as_tensor(optimizer.step(gradient)))  # some optimisers evaluate it several times
        sizes.append(len(index))
    for parameter in model.trained:
        parameter.grad = None
    return float(torch.stack(losses).double().cpu() @ torch.tensor(sizes, dtype=torch.float64)) / sum(sizes)


def _set_gradient(
    model: FlatModel, w_t: Weights, x: Tensor, y: Tensor, loss: Loss, algorithm: Algorithm, clip: float | None
) -> Tensor:
    """Set the gradient of every trained parameter; returns the loss of the batch."""
    batch_loss = loss(model.module(x), y)
    gradients = list(torch.autograd.grad(batch_loss, model.trained, materialize_grads=True))
    trained = model.layout.num_trained
    if (penalty := algorithm.penalty_gradient(model.vector[:trained], w_t.vector[:trained])) is not None:
        torch._foreach_add_(gradients, model.layout.views(penalty))
    if clip is not None:
        clip_norm_(gradients, clip)
    for parameter, gradient in zip(model.trained, gradients, strict=True):
        parameter.grad = gradient
    return batch_loss.detach()
