"""The loss of a model on a client's own data: for power-of-choice, and for clients that judge a filtering."""

import numbers
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from filfl.core.queries.base import Batches, Query
from filfl.evaluation import Loss, Samples, mean_loss, predict
from filfl.weights import FlatModel, Layout, Mismatch, Weights


@dataclass(frozen=True)
class LossQuery(Query):
    """The mean loss on the client's samples. It is NaN or infinite only where it is so for most clients."""

    name: ClassVar[str] = "loss"
    measured: ClassVar[str] = "the loss"

    def answer(self, model: FlatModel, weights: Weights, samples: Samples, loss: Loss) -> float:
        return mean_loss(model, weights, samples, loss)

    @torch.no_grad()
    def answer_on_flower(self, model: nn.Module, batches: Batches, loss: Loss) -> float | None:
        total, number = 0.0, 0
        for inputs, targets in batches:
            total += len(targets) * float(loss(predict(model, inputs), targets))
            number += len(targets)
        return total / number if number else None

    def num_bytes(self, layout: Layout) -> int:
        return 8

    def check(self, reply: Any, layout: Layout) -> float:
        if isinstance(reply, bool) or not isinstance(reply, numbers.Real):
            raise Mismatch(f"the loss must be a number (got {type(reply).__name__})")
        return float(reply)
