"""The client's side of filter rounds by logits: it keeps what it trained to, and says what that says to V.

A Flower mod, around an ordinary `@app.train()`. What a client keeps lies in `context.state`, which Flower hands from
message to message, since every message may start a new process.
"""

import time
from collections.abc import Callable
from typing import cast

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.clientapp.typing import ClientAppCallable, Mod
from torch import Tensor, nn

from filfl.evaluation import Samples, outputs
from filfl.flower.records import one, to_weights
from filfl.logits import Form, Packed, Precision
from filfl.weights import FlatModel

ASK, V, ROWS, LOGITS = "filfl", "filfl_V", "filfl_rows", "filfl_logits"
"""The records in which server and client speak about V."""
KEPT, KEPT_ARRAYS, KEPT_METRICS = "filfl_kept", "filfl_kept_arrays", "filfl_kept_metrics"
"""What a client keeps of one round; the config record of the first name says until when."""
NO_V, NO_WEIGHTS = "it does not have V", "it keeps no weights of this round"


def keep_weights(model: Callable[[Context], nn.Module]) -> Mod:
    """Let a ClientApp take part in filter rounds by logits (`filter.transport = "logits"`):

        app = ClientApp(mods=[keep_weights(lambda context: Net())])

    `model` makes the network whose state `@app.train()` sends. What was trained in a filter round stays with the
    client, is sent if the client is chosen, and is forgotten with that, with the next training, or with whatever comes
    after the server's deadline.
    """

    def mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        asked = message.content.config_records.get(ASK) if message.has_content() else None
        forget(message, context, asked)
        if asked is None:
            return call_next(message, context)
        if asked["ask"] == "upload":
            return _upload(message, context)
        return _rehearse(message, context, asked, call_next, model)

    return mod


def forget(message: Message, context: Context, asked: ConfigRecord | None) -> None:
    """Drop kept weights when their time is over, or when something else is trained. Between its training and its upload
    a client may be asked other questions, such as power-of-choice's."""
    kept = context.state.config_records.get(KEPT)
    if kept is None:
        return
    if asked is not None and asked["ask"] == "upload" and asked["round"] == kept["round"]:
        return  # what it was kept for, however long the server had to wait for others
    trains = message.metadata.message_type.startswith(MessageType.TRAIN)
    if trains or time.time() > float(str(kept["until"])):
        _drop(context)


def _drop(context: Context) -> None:
    for name in (KEPT, KEPT_ARRAYS, KEPT_METRICS):
        context.state.pop(name, None)


def _upload(message: Message, context: Context) -> Message:
    if KEPT not in context.state:
        return _says(message, NO_WEIGHTS)
    kept = {"arrays": context.state[KEPT_ARRAYS], "metrics": context.state[KEPT_METRICS]}
    _drop(context)
    return Message(RecordDict(kept), reply_to=message)


def _rehearse(
    message: Message,
    context: Context,
    asked: ConfigRecord,
    call_next: ClientAppCallable,
    model: Callable[[Context], nn.Module],
) -> Message:
    content = message.content
    if V in content:
        context.state[V] = content.array_records[V]
        context.state[ASK] = ConfigRecord({"digest": asked["digest"]})
    known = context.state.config_records.get(ASK)
    if known is None or known["digest"] != asked["digest"]:
        return _says(message, NO_V)  # before any work: the server sends it with the question again
    plain = {name: record for name, record in content.items() if name not in (ASK, V, ROWS)}
    rows = content.array_records.get(ROWS)
    message.content = RecordDict(plain)
    reply = call_next(message, context)
    if reply.has_error():
        return reply
    arrays: ArrayRecord = one(reply.content.array_records, "arrays")
    metrics = one(reply.content.metric_records, "metrics")
    form = Form(cast(Precision, asked["precision"]), cast(int, asked["top"]) or None)
    samples = _samples(context.state.array_records[V])
    says = _outputs(model(context), arrays, samples if rows is None else samples.at(_tensor(rows["rows"])))
    until = time.time() + cast(float, asked["keep"])  # by this machine's clock, which may be wrong
    context.state[KEPT] = ConfigRecord({"round": asked["round"], "until": until})
    context.state[KEPT_ARRAYS] = arrays
    context.state[KEPT_METRICS] = metrics
    return Message(RecordDict({LOGITS: _packed(form.pack(says)), "metrics": metrics}), reply_to=message)


def _outputs(module: nn.Module, arrays: ArrayRecord, samples: Samples) -> Tensor:
    net = FlatModel(module, next(module.parameters()).device)
    on_device = Samples(*(part.to(net.device) for part in (samples.x, samples.y, samples.scale, samples.shift)))
    return outputs(net, to_weights(arrays, net.layout), on_device).cpu()


def _says(message: Message, reason: str) -> Message:
    return Message(RecordDict({ASK: ConfigRecord({"says": reason})}), reply_to=message)


def _samples(arrays: ArrayRecord) -> Samples:
    x = _tensor(arrays["x"])
    return Samples(x, x.new_empty(len(x), 0), _tensor(arrays["scale"]), _tensor(arrays["shift"]))


def _tensor(array: Array) -> Tensor:
    return torch.from_numpy(array.numpy())


def _packed(packed: Packed) -> ArrayRecord:
    parts = {"values": packed.values, "scales": packed.scales, "classes": packed.classes}
    return ArrayRecord({name: Array(part.numpy()) for name, part in parts.items() if part is not None})
