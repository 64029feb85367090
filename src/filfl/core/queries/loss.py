"""The loss of a model on a client's own data: for power-of-choice, and for clients that judge a filtering."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from filfl.core.queries.base import Batches, Query
from filfl.evaluation import Loss, Samples, mean_loss
from filfl.weights import FlatModel, Layout, Weights


@dataclass(frozen=True)
class LossQuery(Query):
    """The mean loss on the client's samples. It may be NaN: its users handle that."""

    name: ClassVar[str] = "loss"

    def answer(self, model: FlatModel, weights: Weights, samples: Samples, loss: Loss) -> float:
        return mean_loss(model, weights, samples, loss)

    @torch.no_grad()
    def answer_on_flower(self, model: nn.Module, batches: Batches, loss: Loss) -> float | None:
        total, number = 0.0, 0
        for inputs, targets in batches:
            total += len(targets) * float(loss(model(inputs), targets))
            number += len(targets)
        return total / number if number else None

    def num_bytes(self, layout: Layout) -> int:
        return 8
