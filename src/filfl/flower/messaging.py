"""Requests to nodes and their replies: deadlines, errors, and replies that are dropped."""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from flwr.app import Error, Message, MessageType
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from filfl.core.clients import DISCONNECTED, TIMEOUT, Failure
from filfl.errors import one_line
from filfl.flower.logit_messages import REQUEST
from filfl.flower.records import size_of
from filfl.weights import Mismatch

Reply = TypeVar("Reply")

EXPIRED = (ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE)
"""The errors with which Flower reports that a message or its reply has expired."""
IN_THE_ENGINE = "Exception ClientAppException occurred. Message: "
"""How the last line of an error of the simulation engine begins."""
KEEP_WEIGHTS_FIRST = " List keep_weights before this mod, which must see what is trained, not logits"
MOD_SEES_QUERIES = (
    " Move this mod from ClientApp(mods=[...]) to @app.train(mods=[...]); answers to queries pass no mod then"
)
"""What to do if a mod of a ClientApp refuses a request."""
LONGEST_TRACEBACK = 100_000
"""The number of characters of a reason in which the cause is looked for."""


class Messaging:
    """Sends requests to many nodes at a time, with one deadline, in seconds. Later replies are dropped."""

    def __init__(self, grid: Grid, deadline: float) -> None:
        self.grid, self.deadline = grid, deadline
        self._notes: list[str] = []

    def request(self, messages: Sequence[Message], read: Callable[[Message], Reply]) -> dict[int, Reply | Failure]:
        """Node -> its reply, for every node that was asked. Waits no longer than the deadline."""
        return self.read(messages, self.send(messages), read)

    def send(self, messages: Iterable[Message]) -> list[Message]:
        """Send messages, and receive the replies that come until the deadline."""
        sent = list(messages)
        for message in sent:
            message.metadata.ttl = self.deadline  # so that nodes do not work on requests that have expired
        return list(self.grid.send_and_receive(sent, timeout=self.deadline)) if sent else []

    def read(
        self, messages: Sequence[Message], replies: Iterable[Message], read: Callable[[Message], Reply]
    ) -> dict[int, Reply | Failure]:
        """Node -> its reply, for every node that was asked.

        read: what is used of a reply. It may raise any exception: an invalid reply affects only the node that sent it.
        """
        asked = {message.metadata.message_id: message.metadata.dst_node_id for message in messages}
        answers: dict[int, Message] = {}
        for reply in replies:
            # The error of a dead node is sent by the SuperLink, so only the request tells which node it is about.
            node = asked.get(reply.metadata.reply_to_message_id)
            if node is None:
                self._drop(reply, "it replies to no current request")
            elif not reply.has_error() and reply.metadata.src_node_id != node:
                self._drop(reply, f"the request was for node {node}")
            elif node in answers:
                self._drop(reply, "the node has replied already")
            else:
                answers[node] = reply
        late = Failure(f"{TIMEOUT}no reply within {self.deadline:g} s")
        hints = {message.metadata.dst_node_id: _mod_hint(message) for message in messages}
        return {
            node: _read(answers[node], read, late, hints[node]) if node in answers else late for node in asked.values()
        }

    def note(self, text: str) -> None:
        self._notes.append(text)

    def take_notes(self) -> list[str]:
        """The notes since the last call."""
        taken, self._notes = self._notes, []
        return taken

    def _drop(self, reply: Message, reason: str) -> None:
        self.note(f"dropped a reply from node {reply.metadata.src_node_id}: {reason}")


def _read(reply: Message, read: Callable[[Message], Reply], late: Failure, mod_hint: str) -> Reply | Failure:
    if reply.has_error():
        if reply.error.code in EXPIRED:
            return late
        if reply.error.code == ErrorCode.NODE_UNAVAILABLE:
            return Failure(f"{DISCONNECTED}{_cause(reply.error)}")
        hint = mod_hint if reply.error.code == ErrorCode.MOD_FAILED_PRECONDITION else ""
        return Failure(f"error {reply.error.code}: {_cause(reply.error)}{hint}")
    try:
        return read(reply)
    except Mismatch as reason:
        return Failure(one_line(str(reason)), size_of(reply))
    except Exception as error:
        unreadable = f"the reply cannot be read ({type(error).__name__}: {one_line(str(error))})"
        return Failure(unreadable, size_of(reply))


def _mod_hint(request: Message) -> str:
    """What to do if a mod of the ClientApp, such as those for differential privacy, refuses a request.

    These mods accept only a model, and reply with one.
    """
    if request.metadata.message_type.startswith(MessageType.QUERY):
        return MOD_SEES_QUERIES
    return KEEP_WEIGHTS_FIRST if REQUEST in request.content.config_records else ""


def _cause(error: Error) -> str:
    """The reason that a node gave. That of the simulation engine is a traceback, in which the cause comes last."""
    reason = error.reason or "no reason given"
    lines = [line.strip() for line in reason[-LONGEST_TRACEBACK:].removesuffix("'>").splitlines() if line.strip()]
    if len(lines) < 2:
        return one_line(reason)
    last = lines[-1].removeprefix(IN_THE_ENGINE)
    return one_line(next((line for line in lines[-2::-1] if line.endswith(f": {last}")), last))
