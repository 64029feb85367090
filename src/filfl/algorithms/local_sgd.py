"""Lines 6 and 14 of Algorithm 1: a client updates its weights by local SGD."""

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from filfl.algorithms.base import Algorithm
from filfl.evaluation import Loss, Samples
from filfl.weights import FlatModel, Weights


def batches(
    num_samples: int, batch: int, epochs: int | None, steps: int | None, rng: np.random.Generator
) -> Iterator[NDArray[np.int64]]:
    """The sample indices of every local step: a new order each epoch, the last batch may be smaller."""
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
) -> float:
    """Train `model` from w_t, one step of SGD for every batch of `steps`; returns the mean loss on the way.

    The arithmetic is torch.optim.SGD's; the momentum starts anew in every round.
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
        # The gradients as they come out of the backward pass: gathering them in one vector would copy them all.
        direction = list(torch.autograd.grad(step_loss, model.trained, materialize_grads=True))
        if weight_decay:
            torch._foreach_add_(direction, views, alpha=weight_decay)
        if (penalty := algorithm.penalty_gradient(w, w_start)) is not None:
            torch._foreach_add_(direction, model.layout.views(penalty))
        if momentum:
            if velocity is not None:
                torch._foreach_add_(direction, velocity, alpha=momentum)
            velocity = direction
        torch._foreach_add_(views, direction, alpha=-lr)
        del direction, penalty  # so that the next step's gradients take their place in memory
        losses.append(step_loss.detach())
        sizes.append(len(index))
    return float(torch.stack(losses).double().cpu() @ torch.tensor(sizes, dtype=torch.float64)) / sum(sizes)
