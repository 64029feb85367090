"""The gradient of the training loss on a client's own data: for DivFL."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from filfl.core.queries.base import Batches, Query
from filfl.evaluation import Loss, Samples, full_gradient, predict
from filfl.weights import FlatModel, Layout, Mismatch, Weights


@dataclass(frozen=True)
class GradientQuery(Query):
    """The gradient of the mean loss on the client's samples."""

    name: ClassVar[str] = "gradient"
    measured: ClassVar[str] = "the norm of the gradient"
    is_vector: ClassVar[bool] = True

    def answer(self, model: FlatModel, weights: Weights, samples: Samples, loss: Loss) -> Tensor:
        return full_gradient(model, weights, samples, loss)

    def answer_on_flower(self, model: nn.Module, batches: Batches, loss: Loss) -> dict[str, Tensor]:
        trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
        sums, number = [torch.zeros_like(parameter) for parameter in trained.values()], 0
        for inputs, targets in batches:
            value = loss(predict(model, inputs), targets) * len(targets)
            parts = torch.autograd.grad(value, list(trained.values()), materialize_grads=True)
            for total, part in zip(sums, parts, strict=True):
                total += part
            number += len(targets)
        return {name: total / max(1, number) for name, total in zip(trained, sums, strict=True)}

    def num_bytes(self, layout: Layout) -> int:
        return layout.num_trained * layout.dtype.itemsize

    def check(self, reply: Tensor, layout: Layout) -> Tensor:
        if tuple(reply.shape) != (layout.num_trained,):
            raise Mismatch(f"the gradient has shape {tuple(reply.shape)} instead of ({layout.num_trained},)")
        if not reply.isfinite().all():
            raise Mismatch("the gradient has a value that is not finite")
        return reply

    def magnitude(self, reply: Tensor) -> float:
        return float(torch.linalg.vector_norm(reply, dtype=torch.float64))
