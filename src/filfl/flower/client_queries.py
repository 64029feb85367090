"""The client's side of queries, such as those of power-of-choice and DivFL: a Flower ClientApp answers them."""

from collections.abc import Callable, Iterable
from typing import Any, cast

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor, nn

from filfl.core.queries import QUERIES, Query
from filfl.core.queries.base import Split
from filfl.data.batches import Inputs, split_batch
from filfl.evaluation import Loss, cross_entropy
from filfl.flower.trained import set_trained

HELLO = "filfl_hello"
"""The query of the handshake: message type query.filfl_hello."""

Batches = Iterable[Any]
"""Batches (inputs, targets), as from a DataLoader; or dicts, as from Flower's and Hugging Face's datasets."""
Load = Callable[[Context], tuple[nn.Module, Batches] | tuple[nn.Module, Batches, Batches]]
"""(context) -> the client's network, its training batches and, if it has any, its validation batches."""


def query_name(name: str) -> str:
    """The message type of a query, after "query."."""
    return f"filfl_{name}"


def add_queries(app: ClientApp, load: Load, loss: Loss = cross_entropy) -> None:
    """Let a ClientApp answer the queries of filfl's selections, in addition to its own `@app.train()`:

    add_queries(app, lambda context: (Net(), *load_data(context)))
    """

    @app.query(HELLO)
    def hello(message: Message, context: Context) -> Message:
        model, train, *_ = load(context)
        metrics: dict[str, Any] = {"num-examples": sum(len(split_batch(batch, model)[1]) for batch in train)}
        partition = context.node_config.get("partition-id")
        if isinstance(partition, int):
            metrics["partition-id"] = partition
        return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)

    for query in QUERIES.values():
        app.query(query_name(query.name))(_handler(query, load, loss))


def _handler(query: type[Query], load: Load, loss: Loss) -> Callable[[Message, Context], Message]:
    def answer(message: Message, context: Context) -> Message:
        model, train, *validation = load(context)
        set_trained(model, message.content.array_records["arrays"])
        model.eval()
        asked = query(cast(Split, message.content.config_records["config"]["split"]))
        reply = None
        if validation and asked.split == "validation":
            reply = asked.answer_on_flower(model, _on_device(model, validation[0]), loss)
        if reply is None:
            reply = asked.answer_on_flower(model, _on_device(model, train), loss)
        if isinstance(reply, dict):
            return Message(RecordDict({"arrays": ArrayRecord(reply)}), reply_to=message)
        metrics = MetricRecord({query.name: float("nan") if reply is None else reply})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return answer


def _on_device(model: nn.Module, batches: Batches) -> Iterable[tuple[Inputs, Tensor]]:
    device = next(model.parameters()).device
    for batch in batches:
        inputs, targets = split_batch(batch, model)
        placed = {n: v.to(device) for n, v in inputs.items()} if isinstance(inputs, dict) else inputs.to(device)
        yield placed, targets.to(device)
