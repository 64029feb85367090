"""Requests to nodes and their replies: deadlines, errors, and replies that are dropped."""

from collections.abc import Sequence

from flwr.app import Message
from flwr.serverapp import Grid

from filfl.core.clients import Failure
from filfl.errors import one_line


class Messaging:
    """Sends requests to many nodes at a time, with one deadline. Events that concern no single client are notes."""

    def __init__(self, grid: Grid, deadline: float) -> None:
        self._grid, self._deadline = grid, deadline
        self._notes: list[str] = []

    def request(self, messages: Sequence[Message]) -> dict[int, Message | Failure]:
        """Node -> its reply, for every node that was asked. Waits no longer than the deadline."""
        for message in messages:
            message.metadata.ttl = self._deadline  # so that nodes do not work on requests that have expired
        replies = list(self._grid.send_and_receive(list(messages), timeout=self._deadline)) if messages else []
        asked = {message.metadata.message_id: message.metadata.dst_node_id for message in messages}
        answers: dict[int, Message | Failure] = {}
        for reply in replies:
            # The error of a dead node is sent by the SuperLink, so only the request tells which node it is about.
            node = asked.get(reply.metadata.reply_to_message_id)
            if node is None:
                self._drop(reply, "it replies to no current request")
            elif not reply.has_error() and reply.metadata.src_node_id != node:
                self._drop(reply, f"the request was for node {node}")
            elif node in answers:
                self._drop(reply, "the node has replied already")
            elif reply.has_error():
                answers[node] = Failure(
                    f"error {reply.error.code}: {one_line(reply.error.reason or 'no reason given')}"
                )
            else:
                answers[node] = reply
        late = Failure(f"no reply within {self._deadline:g} s")
        return {node: answers.get(node, late) for node in asked.values()}

    def note(self, text: str) -> None:
        self._notes.append(text)

    def take_notes(self) -> list[str]:
        """The notes since the last call."""
        taken, self._notes = self._notes, []
        return taken

    def _drop(self, reply: Message, reason: str) -> None:
        self.note(f"dropped a reply from node {reply.metadata.src_node_id}: {reason}")
