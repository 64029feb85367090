"""The server's side of filter rounds by logits: the questions, and what is read from the answers."""

from collections.abc import Sequence

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, RecordDict

from filfl.clients import Sheet
from filfl.flower.keeping import ASK, LOGITS, ROWS, V
from filfl.flower.records import one
from filfl.logits import Packed
from filfl.weights import Mismatch

HINT = "it sent its model instead of logits: its ClientApp needs mods=[filfl.flower.keep_weights(...)]"


def questions(
    messages: Sequence[Message], sheet: Sheet, with_V: frozenset[int], round: int, keep: float
) -> list[Message]:
    """A strategy's messages to train, which also ask what the model says to V; `with_V` are the nodes that get it.
    `keep`: for how many seconds to keep what was trained."""
    asked = ConfigRecord(
        {
            "ask": "logits",
            "round": round,
            "digest": sheet.digest,
            "precision": sheet.form.precision,
            "top": sheet.form.top or 0,
            "keep": keep,
        }
    )
    extra: dict[str, ConfigRecord | ArrayRecord] = {ASK: asked}
    if sheet.rows is not None:
        extra[ROWS] = ArrayRecord({"rows": Array(sheet.rows.int().numpy())})
    inputs = {"x": sheet.V.x, "scale": sheet.V.scale, "shift": sheet.V.shift}
    to_all = ArrayRecord({name: Array(part.cpu().numpy()) for name, part in inputs.items()})
    made = []
    for message in messages:
        node = message.metadata.dst_node_id
        content = RecordDict({**message.content, **extra, **({V: to_all} if node in with_V else {})})
        made.append(Message(content, node, message.metadata.message_type))
    return made


def upload_question(node: int, round: int) -> Message:
    return Message(RecordDict({ASK: ConfigRecord({"ask": "upload", "round": round})}), node, MessageType.TRAIN)


def refusal(reply: Message) -> str | None:
    """What a client says instead of an answer."""
    said = reply.content.config_records.get(ASK)
    return None if said is None else str(said.get("says", "it says nothing"))


def logits_of(reply: Message) -> Packed:
    records = reply.content.array_records
    if LOGITS not in records:
        raise Mismatch(HINT if records else "there are no logits in the answer")
    parts = {name: torch.from_numpy(array.numpy()) for name, array in one(records, "arrays").items()}
    if not parts.keys() <= {"values", "scales", "classes"} or "values" not in parts:
        raise Mismatch(f"the logits have other parts than they should: {', '.join(sorted(parts))}")
    return Packed(parts["values"], parts.get("scales"), parts.get("classes"))
