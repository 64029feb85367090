"""The messages of the logits transport on Flower: requests for logits and for weights, and the replies."""

from collections.abc import Sequence

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict

from filfl.flower.records import one
from filfl.logits.encoding import EncodedLogits
from filfl.logits.messages import LogitRequest
from filfl.weights import Mismatch

REQUEST, V, ROWS, LOGITS = "filfl", "filfl_V", "filfl_rows", "filfl_logits"
"""The records of a message: the request, the inputs of V, the rows of V it is about, and the logits of the reply."""
NO_V, NO_WEIGHTS = "the client does not have V", "the client has no weights of this round"
"""The reasons with which a client refuses a request."""
NO_MOD = "the reply has weights instead of logits; add mods=[filfl.flower.keep_weights(...)] to the ClientApp"


def logit_requests(
    messages: Sequence[Message], request: LogitRequest, with_V: frozenset[int], round: int, keep: float
) -> list[Message]:
    """A strategy's messages to train, with a request for logits on V added.

    with_V: the nodes that receive V with it. keep: for how many seconds a node keeps its trained weights.
    """
    encoding = {"precision": request.encoding.precision, "top": request.encoding.top or 0}
    asked = ConfigRecord({"kind": "logits", "round": round, "digest": request.digest, "keep": keep, **encoding})
    extra: dict[str, ConfigRecord | ArrayRecord] = {REQUEST: asked}
    if request.rows is not None:
        extra[ROWS] = ArrayRecord({"rows": request.rows.int()})
    public = ArrayRecord(request.V.arrays())
    made = []
    for message in messages:
        node = message.metadata.dst_node_id
        content = RecordDict({**message.content, **extra, **({V: public} if node in with_V else {})})
        made.append(Message(content, node, message.metadata.message_type))
    return made


def upload_request(node: int, round: int) -> Message:
    return Message(RecordDict({REQUEST: ConfigRecord({"kind": "upload", "round": round})}), node, MessageType.TRAIN)


def raise_refusal(reply: Message) -> None:
    """Raise `Mismatch` with the reason with which a client refuses a request, if it does."""
    if (record := reply.content.config_records.get(REQUEST)) is not None:
        raise Mismatch(str(record.get("reason", "no reason given")))


def logits_of(reply: Message) -> EncodedLogits:
    raise_refusal(reply)
    records = reply.content.array_records
    if LOGITS not in records:
        raise Mismatch(NO_MOD if records else "the reply has no logits")
    parts = one(records, "arrays").to_torch_state_dict()
    if not parts.keys() <= {"values", "scales", "classes"} or "values" not in parts:
        raise Mismatch(f"the logits must have values, scales and classes only (got {', '.join(sorted(parts))})")
    return EncodedLogits(**parts)
