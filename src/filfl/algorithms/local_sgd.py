"""Local SGD, with which a client updates its weights: lines 6 and 14 of Algorithm 1."""

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from filfl.algorithms.base import Algorithm
from filfl.evaluation import Loss, Samples
from filfl.weights import FlatModel, Weights


def batches(
    num_samples: int, batch: int, epochs: int | None, steps: int | None, rng: np.random.Generator
) -> Iterator[NDArray[np.int64]]:
    """The sample indices of every local step. Each epoch has a new order; its last batch may be smaller."""
    if steps is None:
        steps = (epochs or 1) * -(-num_samples // batch)
    while steps > 0:
        order = rng.permutation(num_samples)
        for start in range(0, num_samples, batch)[:steps]:
            yield order[start : start + batch]
            steps -= 1


def local_sgd(
    model: FlatModel,
    w_t: Weights,
    samples: Samples,
    loss: Loss,
    algorithm: Algorithm,
    steps: Iterator[NDArray[np.int64]],
    lr: float,
    momentum: float,
    weight_decay: float,
    clip: float | None = None,
) -> float:
    """Train `model` from w_t with one step of SGD for every batch of `steps`. Returns the mean loss of these batches.

    The arithmetic is that of torch.optim.SGD. The momentum starts at zero in every round.
    clip: the largest norm of the gradient, that of the algorithm's penalty included.
    """
    model.load(w_t)
    model.module.train()
    trained = model.layout.num_trained
    w, w_start = model.vector[:trained], w_t.vector[:trained]
    views = model.layout.views(w)
    velocity = None
    losses, sizes = [], []
    for index in steps:
        x, y = samples.batch(torch.from_numpy(index).to(model.device))
        step_loss = loss(model.module(x), y)
        # One gradient per parameter: joining them in one vector would copy all of them.
        direction = list(torch.autograd.grad(step_loss, model.trained, materialize_grads=True))
        penalty = algorithm.penalty_gradient(w, w_start)
        if clip is not None:
            if penalty is not None:
                torch._foreach_add_(direction, model.layout.views(penalty))
                penalty = None
            clip_norm_(direction, clip)
        if weight_decay:
            torch._foreach_add_(direction, views, alpha=weight_decay)
        if penalty is not None:
            torch._foreach_add_(direction, model.layout.views(penalty))
        if momentum:
            if velocity is not None:
                torch._foreach_add_(direction, velocity, alpha=momentum)
            velocity = direction
        torch._foreach_add_(views, direction, alpha=-lr)
        del direction, penalty  # so that the next step can reuse their memory
        losses.append(step_loss.detach())
        sizes.append(len(index))
    return float(torch.stack(losses).double().cpu() @ torch.tensor(sizes, dtype=torch.float64)) / sum(sizes)


def clip_norm_(gradients: list[Tensor], limit: float) -> None:
    """Scale a gradient, one tensor per parameter, down to the norm `limit` if it is larger, as clip_grad_norm_ does."""
    norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
    torch._foreach_mul_(gradients, (limit / (norm + 1e-6)).clamp(max=1))
