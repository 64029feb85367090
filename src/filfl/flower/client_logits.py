"""The client's side of the logits transport: it keeps its trained weights and replies with their logits on V.

A Flower mod around an ordinary `@app.train()`. Kept weights are stored in `context.state`, which Flower passes from
message to message, because every message may start a new process.
"""

import time
from collections.abc import Callable
from typing import cast

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.clientapp.typing import ClientAppCallable, Mod
from torch import Tensor, nn

from filfl.errors import ConfigError
from filfl.evaluation import outputs, received_samples
from filfl.filtering.function_model import FunctionModel, Logits
from filfl.flower.logit_messages import LOGITS, NO_V, NO_WEIGHTS, REQUEST, ROWS, V
from filfl.flower.records import one, to_weights
from filfl.logits.encoding import Encoding, Precision
from filfl.weights import FlatModel

KEPT, KEPT_ARRAYS, KEPT_METRICS = "filfl_kept", "filfl_kept_arrays", "filfl_kept_metrics"
"""The records in which a client keeps the result of one round; the first one has the round and the expiry time."""


def keep_weights(model: Callable[[Context], nn.Module] | None = None, *, logits: Logits | None = None) -> Mod:
    """Let a ClientApp take part in filter rounds by logits (`filter.transport = "logits"`):

        app = ClientApp(mods=[keep_weights(lambda context: Net())])
        app = ClientApp(mods=[keep_weights(logits=logits)])  # JAX, Keras, scikit-learn, ...

    `model` makes the network whose state `@app.train()` sends. For other frameworks, `logits` is the function (arrays,
    x) -> logits of the server's `FilteringSet.of_function`. The weights trained in a filter round stay with the
    client and are sent if the client is selected. They are dropped after that, at the next training, or at the first
    message after the server's deadline.

    Mods that change the model, such as `LocalDpMod`, come after it in the list, or belong to `@app.train(mods=[...])`.
    The client then keeps what they made of its weights: this is what its logits are of, and what it uploads.
    """
    if (model is None) == (logits is None):
        raise ConfigError("keep_weights needs either model, a function (context) -> network, or logits=FUNCTION")

    def network(context: Context, arrays: ArrayRecord) -> nn.Module:
        if model is not None:
            return model(context)
        assert logits is not None
        return FunctionModel(logits, {name: array.numpy() for name, array in arrays.items()})

    def mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        request = message.content.config_records.get(REQUEST) if message.has_content() else None
        drop_expired(message, context, request)
        if request is None:
            return call_next(message, context)
        if request["kind"] == "upload":
            return _upload(message, context)
        return _train_for_logits(message, context, request, call_next, network)

    return mod


def drop_expired(message: Message, context: Context, request: ConfigRecord | None) -> None:
    """Drop kept weights when they have expired, or when the client trains again.

    Between its training and its upload a client may receive other messages, such as the queries of power-of-choice.
    """
    kept = context.state.config_records.get(KEPT)
    if kept is None:
        return
    if request is not None and request["kind"] == "upload" and request["round"] == kept["round"]:
        return  # the upload that they were kept for, however long the server had to wait for other clients
    trains = message.metadata.message_type.startswith(MessageType.TRAIN)
    if trains or time.time() > float(str(kept["until"])):
        _drop(context)


def _drop(context: Context) -> None:
    for name in (KEPT, KEPT_ARRAYS, KEPT_METRICS):
        context.state.pop(name, None)


def _upload(message: Message, context: Context) -> Message:
    if KEPT not in context.state:
        return _refuse(message, NO_WEIGHTS)
    kept = {"arrays": context.state[KEPT_ARRAYS], "metrics": context.state[KEPT_METRICS]}
    _drop(context)
    return Message(RecordDict(kept), reply_to=message)


def _train_for_logits(
    message: Message,
    context: Context,
    request: ConfigRecord,
    call_next: ClientAppCallable,
    network: Callable[[Context, ArrayRecord], nn.Module],
) -> Message:
    content = message.content
    if V in content:
        context.state[V] = content.array_records[V]
        context.state[REQUEST] = ConfigRecord({"digest": request["digest"]})
    stored = context.state.config_records.get(REQUEST)
    if stored is None or stored["digest"] != request["digest"]:
        return _refuse(message, NO_V)  # before training: the server repeats the request with V
    plain = {name: record for name, record in content.items() if name not in (REQUEST, V, ROWS)}
    rows = content.array_records.get(ROWS)
    message.content = RecordDict(plain)
    reply = call_next(message, context)
    if reply.has_error():
        return reply
    arrays: ArrayRecord = one(reply.content.array_records, "arrays")
    metrics = one(reply.content.metric_records, "metrics")
    encoding = Encoding(cast(Precision, request["precision"]), cast(int, request["top"]) or None)
    z = _outputs(network(context, arrays), arrays, context.state.array_records[V], rows)
    logits = {name: part for name, part in vars(encoding.encode(z)).items() if part is not None}
    until = time.time() + cast(float, request["keep"])  # by this machine's clock, which may be wrong
    context.state[KEPT] = ConfigRecord({"round": request["round"], "until": until})
    context.state[KEPT_ARRAYS] = arrays
    context.state[KEPT_METRICS] = metrics
    return Message(RecordDict({LOGITS: ArrayRecord(logits), "metrics": metrics}), reply_to=message)


def _outputs(module: nn.Module, arrays: ArrayRecord, inputs: ArrayRecord, rows: ArrayRecord | None) -> Tensor:
    net = FlatModel(module, next(module.parameters()).device)
    samples = received_samples(inputs.to_torch_state_dict(), net.device)
    if rows is not None:
        samples = samples.at(rows.to_torch_state_dict()["rows"].long())
    return outputs(net, to_weights(arrays, net.layout), samples).cpu()


def _refuse(message: Message, reason: str) -> Message:
    return Message(RecordDict({REQUEST: ConfigRecord({"reason": reason})}), reply_to=message)
