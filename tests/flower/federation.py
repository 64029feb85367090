"""An in-memory Flower Grid with real ClientApps, and nodes whose replies a test can change."""

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1


NOT_USED = "filfl must use only send_and_receive, where deadlines are set"


@dataclass
class Node:
    """A node with its app and config. `tamper` may change a reply before it is sent; None means no reply."""

    app: ClientApp
    config: dict[str, Any] = field(default_factory=dict)
    run_config: dict[str, Any] = field(default_factory=dict)
    tamper: Callable[[Message], Message | None] = lambda reply: reply
    connected: bool = True
    name: str = ""
    asked: list[str] = field(default_factory=list)
    """The types of the messages received."""
    got: list[set[str]] = field(default_factory=list)
    """The names of the records in each message received."""
    state: RecordDict = field(default_factory=RecordDict)
    """The state that persists between messages."""


@dataclass
class Info:
    node_id: int
    name: str = ""
    registered_at: str = ""


class MemoryGrid(Grid):
    """Behaves like Flower's grids: exceptions of a node become error replies, and replies arrive in any order."""

    def __init__(self, nodes: dict[int, Node]) -> None:
        self.nodes = nodes
        self.stray: list[Message] = []
        """Messages that arrive together with the next replies."""
        self.ttls: list[float] = []
        self._ids = (f"message-{i}" for i in itertools.count())

    def set_run(self, run: Any) -> None: ...

    @property
    def run(self) -> Any:
        return None

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise AssertionError(NOT_USED)

    def get_node_ids(self) -> list[int]:
        return [node_id for node_id, node in self.nodes.items() if node.connected]

    def get_nodes(self) -> Iterable[Any]:
        order = {node_id: f"2026-01-01T00:00:00.{i:06d}+00:00" for i, node_id in enumerate(self.nodes, start=1)}
        return [Info(node_id, self.nodes[node_id].name, order[node_id]) for node_id in self.get_node_ids()]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        raise AssertionError(NOT_USED)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        raise AssertionError(NOT_USED)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        assert isinstance(messages, list), "a generator fails in deployment"
        replies, self.stray = list(self.stray), []
        for message in messages:
            message.metadata.__dict__["_message_id"] = next(self._ids)
            self.ttls.append(message.metadata.ttl)
            node = self.nodes[message.metadata.dst_node_id]
            node.asked.append(message.metadata.message_type)
            node.got.append(set(message.content))
            reply = self._reply(node, message) if node.connected else None
            if reply is not None:
                replies.append(reply)
        return replies[::-1]

    def _reply(self, node: Node, message: Message) -> Message | None:
        context = Context(
            run_id=1,
            node_id=message.metadata.dst_node_id,
            node_config=node.config,
            state=node.state,
            run_config=node.run_config,
        )
        try:
            reply = node.app(message, context)
        except Exception as error:
            reply = Message(Error(code=1, reason=f"{type(error).__name__}: {error}"), reply_to=message)
            reply.metadata.__dict__["_src_node_id"] = 1  # errors come from the SuperLink
        return node.tamper(reply)
