"""Replies of a faulty or hostile node, as messages of Flower, and the law: a node that lies equals one that is silent.

`on_flower(seed)` runs one random case and raises AssertionError where the law does not hold. The tables are the cases;
a new one is one line.
"""

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp import strategy as flower
from sites import SITES, batches, federation, initial, loss_on_v, new_net, numbers, plain_app

from federation import MemoryGrid
from filfl.flower import FilFL, add_queries
from hostile import HUGE, TEXTS, draw

Tamper = Callable[[Message], Message | None]


def altered_test(**metrics: Any) -> Tamper:
    """Add metrics to a node's test of the model."""

    def tamper(reply: Message) -> Message:
        if reply.metadata.message_type == "evaluate" and not reply.has_error():
            reply.content = RecordDict({"metrics": MetricRecord({**reply.content["metrics"], **metrics})})
        return reply

    return tamper


def altered(arrays: Callable[[dict[str, Any]], dict[str, Any]] = dict, **metrics: Any) -> Tamper:
    """Change the arrays or the metrics of a reply; a metric that is None is removed."""

    def tamper(reply: Message) -> Message:
        if reply.has_error() or not reply.content.array_records:
            return reply
        new = {name: array.numpy() for name, array in reply.content["arrays"].items()}
        changed = {**reply.content["metrics"], **metrics}
        reply.content = RecordDict(
            {
                "arrays": ArrayRecord({name: Array(value) for name, value in arrays(new).items()}),
                "metrics": MetricRecord({name: value for name, value in changed.items() if value is not None}),
            }
        )
        return reply

    return tamper


def content(change: Callable[[RecordDict], RecordDict]) -> Tamper:
    def tamper(reply: Message) -> Message:
        reply.content = change(reply.content)
        return reply

    return tamper


def error(reply: Message, reason: str = "Node Unavailable", code: int = 5) -> Message:
    failed = Message(Error(code=code, reason=reason), reply_to=reply)
    failed.metadata.__dict__ |= {"_reply_to_message_id": reply.metadata.reply_to_message_id, "_src_node_id": 1}
    return failed


def nan(arrays: dict[str, Any]) -> dict[str, Any]:
    return {**arrays, "bias": np.full_like(arrays["bias"], np.nan)}


FAULTS: dict[str, tuple[Tamper, str]] = {
    "fails": (error, "disconnected: Node Unavailable"),
    "does not reply": (lambda reply: None, "timeout: no reply within"),
    "sends NaN": (altered(nan), "bias has a value that is not finite"),
    "sends another shape": (altered(lambda a: {**a, "bias": a["bias"][:1]}), r"bias has shape \(1,\)"),
    "sends another type": (altered(lambda a: {**a, "bias": a["bias"].astype("int64")}), "bias has dtype"),
    "omits an array": (altered(lambda a: {"weight": a["weight"]}), "key bias is missing"),
    "adds an array": (altered(lambda a: {**a, "more": a["bias"]}), "key more is not"),
    "claims 10^12 examples": (altered(**{"num-examples": 10**12}), "number of examples must be"),
    "claims 0 examples": (altered(**{"num-examples": 0}), "number of examples must be"),
    "claims -5 examples": (altered(**{"num-examples": -5}), "number of examples must be"),
    "claims NaN examples": (altered(**{"num-examples": float("nan")}), "number of examples must be"),
    "claims a list of examples": (altered(**{"num-examples": [1, 2]}), "number of examples must be"),
    "omits the number of examples": (altered(**{"num-examples": None}), "no num-examples"),
    "sends no records": (content(lambda c: RecordDict()), "0 records of metrics"),
    "sends only metrics": (content(lambda c: RecordDict({"m": c["metrics"]})), "0 records of arrays"),
    "sends each record twice": (
        content(lambda c: RecordDict({**c, "again": c["arrays"], "and": c["metrics"]})),
        "2 records of metrics",
    ),
    "sends arrays that are not npy": (
        content(lambda c: RecordDict({**c, "arrays": ArrayRecord({k: _broken(a) for k, a in c["arrays"].items()})})),
        "cannot be read",
    ),
}


def _broken(array: Array) -> Array:
    return Array(dtype=array.dtype, shape=array.shape, stype=array.stype, data=b"\x80\x04pickle?")


def one_weight(value: float) -> Tamper:
    def change(arrays: dict[str, Any]) -> dict[str, Any]:
        weight = arrays["weight"].copy()
        weight.flat[1] = value
        return {**arrays, "weight": weight}

    return altered(change)


OUTLIERS: dict[str, tuple[Tamper, str]] = {
    **{f"sends one weight of {value:g}": (one_weight(value), "norm of the update") for value in HUGE},
    "claims 10^9 examples": (altered(**{"num-examples": 10**9}), "it claims 1,000,000,000 examples"),
    "claims 10^9 examples as a float": (altered(**{"num-examples": 1e9}), "it claims 1,000,000,000 examples"),
    "claims 10^6 examples": (altered(**{"num-examples": 10**6}), "it claims 1,000,000 examples"),
}
"""What only the comparison with other nodes shows, so most nodes must be honest."""


def to_query(tamper: Tamper) -> Tamper:
    """Change only the answers to queries for a loss."""
    return lambda reply: tamper(reply) if reply.metadata.message_type == "query.filfl_loss" else reply


def answering(**metrics: Any) -> Tamper:
    return to_query(content(lambda c: RecordDict({"metrics": MetricRecord(metrics)})))


ANSWERS: dict[str, tuple[Tamper, str]] = {
    "answers NaN": (answering(loss=math.nan), "the loss is not finite"),
    "answers inf": (answering(loss=math.inf), "the loss is not finite"),
    "answers -inf": (answering(loss=-math.inf), "the loss is not finite"),
    "answers 1e308": (answering(loss=1e308), "the loss is not finite"),
    "answers 1e12": (answering(loss=1e12), "median of the other clients"),
    "answers -1e12": (answering(loss=-1e12), "median of the other clients"),
    "answers a list": (answering(loss=[1.0, 2.0]), "cannot be read"),
    "answers another question": (answering(accuracy=1.0), "cannot be read"),
    "answers nothing": (answering(), "cannot be read"),
    **{
        f"fails with the reason {i}": (to_query(lambda reply, text=text: error(reply, text)), "disconnected: ")
        for i, text in enumerate(TEXTS)
        if "\ud800" not in text  # protobuf does not transport it
    },
}
"""Answers to a query for a loss."""
LIAR = 2


def run(
    grid: MemoryGrid, rounds: int = 3, arrays: ArrayRecord | None = None, **options: Any
) -> tuple[Any, list[dict[str, Any]]]:
    records: list[dict[str, Any]] = []
    options = {"filter": "none", "k": SITES, "min_nodes": 1, "wait": 1.0, **options}
    callbacks = [lambda record, state: records.append(record)]
    strategy = FilFL(flower.FedAvg(fraction_evaluate=0.0), callbacks=callbacks, **options)
    return strategy.start(grid, arrays or initial(), num_rounds=rounds, timeout=30.0), records


def with_queries() -> MemoryGrid:
    app = plain_app()
    add_queries(app, lambda context: (new_net(), batches(context)))
    return federation(app)


TRAINING: dict[str, dict[str, Any]] = {"none": {}, "dgf": {"filter": "dgf", "evaluate": loss_on_v}}
QUERYING: dict[str, dict[str, Any]] = {
    "federated": {"filter": "dgf", "k": 3, "options": {"filter.data": "federated"}},
    "power-of-choice": {"selection": "power-of-choice", "k": 3},
}


def assert_silent(tamper: Tamper, reason: str, no_reply: Tamper, **options: Any) -> None:
    """The law: the model and the decisions are those of a run in which the node does not reply, and the record names
    the node and nobody else."""
    grid, without = with_queries(), with_queries()
    grid.nodes[1000 + 17 * LIAR].tamper = tamper
    without.nodes[1000 + 17 * LIAR].tamper = no_reply
    (result, records), (expected, others) = run(grid, 2, **options), run(without, 2, **options)
    np.testing.assert_array_equal(numbers(result.arrays), numbers(expected.arrays))
    for decided in ("filtered", "selected", "reward_filtered", "selected_train_loss"):
        assert [record[decided] for record in records] == [record[decided] for record in others]
    assert any(record["refused"] for record in records), "nobody was named"
    for record in records:
        assert record["refused"].keys() <= {str(LIAR)}
        for text in record["refused"].values():
            assert re.search(reason, text) and text.isprintable() and len(text) <= 200, ascii(text)


def on_flower(seed: int) -> str:
    """One random lie. Returns what it was."""
    rng = np.random.default_rng(seed)
    if rng.integers(2):
        name, (tamper, reason) = draw({**FAULTS, **OUTLIERS}, rng)
        run, options = draw(TRAINING, rng)
        assert_silent(tamper, reason, lambda reply: None, **options)
    else:
        name, (tamper, reason) = draw(ANSWERS, rng)
        run, options = draw(QUERYING, rng)
        assert_silent(tamper, reason, to_query(lambda reply: None), **options)
    return f"{run}: {name}"
