"""Messages to nodes and their answers: who is asked, who answers in time, and what is dropped."""

from collections.abc import Sequence

from flwr.app import Message
from flwr.serverapp import Grid

from filfl.clients import Failure
from filfl.errors import one_line


class Mail:
    """One question to many nodes at a time, with one deadline. What belongs to no question is a remark."""

    def __init__(self, grid: Grid, deadline: float) -> None:
        self._grid, self._deadline = grid, deadline
        self._remarks: list[str] = []

    def ask(self, messages: Sequence[Message]) -> dict[int, Message | Failure]:
        """Node -> its answer, for everybody that was asked. Nobody is waited for longer than the deadline."""
        for message in messages:
            message.metadata.ttl = self._deadline  # so that nobody works on what nobody waits for
        replies = list(self._grid.send_and_receive(list(messages), timeout=self._deadline)) if messages else []
        asked = {message.metadata.message_id: message.metadata.dst_node_id for message in messages}
        answers: dict[int, Message | Failure] = {}
        for reply in replies:
            # A dead node's error comes from the SuperLink, so who it is about is known by the question only.
            node = asked.get(reply.metadata.reply_to_message_id)
            if node is None:
                self._drop(reply, "it answers nothing that was asked now")
            elif not reply.has_error() and reply.metadata.src_node_id != node:
                self._drop(reply, f"the question was for node {node}")
            elif node in answers:
                self._drop(reply, "it has answered already")
            elif reply.has_error():
                answers[node] = Failure(
                    f"error {reply.error.code}: {one_line(reply.error.reason or 'no reason given')}"
                )
            else:
                answers[node] = reply
        late = Failure(f"no answer within {self._deadline:g} s")
        return {node: answers.get(node, late) for node in asked.values()}

    def remark(self, text: str) -> None:
        self._remarks.append(text)

    def remarks(self) -> list[str]:
        """What was remarked since the last time."""
        said, self._remarks = self._remarks, []
        return said

    def _drop(self, reply: Message, why: str) -> None:
        self.remark(f"an answer from node {reply.metadata.src_node_id} was dropped: {why}")
