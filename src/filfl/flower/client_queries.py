"""The client's side of power-of-choice and DivFL: queries that a Flower ClientApp answers."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor, nn

from filfl.evaluation import Loss, cross_entropy

HELLO, LOSS, GRADIENT = "filfl_hello", "filfl_loss", "filfl_gradient"
"""The names of the queries: message types query.filfl_hello, ..."""

Batches = Iterable[Any]
"""Batches (inputs, targets), as from a DataLoader; or dicts of these two, as from Flower's datasets."""
Load = Callable[[Context], tuple[nn.Module, Batches] | tuple[nn.Module, Batches, Batches]]
"""(context) -> the client's network, its training batches and, if it has any, its validation batches."""


def add_queries(app: ClientApp, load: Load, loss: Loss = cross_entropy) -> None:
    """Let a ClientApp answer the queries of filfl's selections, in addition to its own `@app.train()`:

    add_queries(app, lambda context: (Net(), *load_data(context)))
    """

    @app.query(HELLO)
    def hello(message: Message, context: Context) -> Message:
        train = load(context)[1]
        metrics: dict[str, Any] = {"num-examples": sum(len(targets) for _, targets in _pairs(train))}
        partition = context.node_config.get("partition-id")
        if isinstance(partition, int):
            metrics["partition-id"] = partition
        return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)

    @app.query(LOSS)
    def mean_loss(message: Message, context: Context) -> Message:
        model, train, *validation = load(context)
        split = message.content.config_records["config"]["split"]
        _load(model, message)
        value = _mean_loss(model, validation[0], loss) if validation and split == "validation" else None
        if value is None:
            value = _mean_loss(model, train, loss)
        return Message(
            RecordDict({"metrics": MetricRecord({"loss": float("nan") if value is None else value})}), reply_to=message
        )

    @app.query(GRADIENT)
    def gradient(message: Message, context: Context) -> Message:
        model, train, *_ = load(context)
        _load(model, message)
        return Message(RecordDict({"arrays": _gradient(model, train, loss)}), reply_to=message)


def _load(model: nn.Module, message: Message) -> None:
    model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    model.eval()


def _pairs(batches: Batches) -> Iterable[tuple[Tensor, Tensor]]:
    for batch in batches:
        inputs, targets = batch.values() if isinstance(batch, Mapping) else batch
        yield inputs, targets


def _device(model: nn.Module) -> torch.device:
    return next(model.parameters()).device


@torch.no_grad()
def _mean_loss(model: nn.Module, batches: Batches, loss: Loss) -> float | None:
    """The mean over the samples; None if there are none."""
    device, total, number = _device(model), 0.0, 0
    for inputs, targets in _pairs(batches):
        total += len(targets) * float(loss(model(inputs.to(device)), targets.to(device)))
        number += len(targets)
    return total / number if number else None


def _gradient(model: nn.Module, batches: Batches, loss: Loss) -> ArrayRecord:
    """The gradient of the mean loss, by the names of the trained parameters."""
    device, number = _device(model), 0
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    sums: Sequence[Tensor] = [torch.zeros_like(parameter) for parameter in trained.values()]
    for inputs, targets in _pairs(batches):
        value = loss(model(inputs.to(device)), targets.to(device)) * len(targets)
        for total, part in zip(
            sums, torch.autograd.grad(value, list(trained.values()), materialize_grads=True), strict=True
        ):
            total += part
        number += len(targets)
    means = (total / max(1, number) for total in sums)
    return ArrayRecord({name: Array(mean.cpu().numpy()) for name, mean in zip(trained, means, strict=True)})
