"""The `Clients` protocol over a Flower Grid: requests to clients become messages to nodes."""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray

from filfl.availability.base import Ids
from filfl.core.clients import Failure, Update
from filfl.core.guard import MAX_EXAMPLES
from filfl.core.queries import Query
from filfl.errors import RunError, one_line
from filfl.flower.client_queries import HELLO, query_name
from filfl.flower.logit_messages import NO_V, logit_requests, logits_of, refusal, upload_request
from filfl.flower.messaging import Messaging
from filfl.flower.node_registry import NodeRegistry
from filfl.flower.records import one, size_of, to_arrays, to_gradient
from filfl.flower.wrapped_strategy import WrappedStrategy
from filfl.logits.messages import LogitReply, LogitRequest
from filfl.selection.base import AnyIds
from filfl.weights import Layout, Mismatch, Weights

Reply = TypeVar("Reply")

MAX_GROWTH = 10
"""A node is refused if it claims more than this many times the examples it reported first: it would dominate the
average."""
LOSS_NAMES = ("train_loss", "train-loss", "loss")
"""The names that clients use for their train loss."""


@dataclass(frozen=True)
class Deadlines:
    """How long the server waits, in seconds, and for how many nodes."""

    reply: float
    """For the replies to one request; later replies are dropped."""
    nodes: float
    """For enough nodes to be connected."""
    min_nodes: int
    """How many are enough."""


@dataclass(frozen=True)
class Handshake:
    """What the server asks a node that it sees for the first time."""

    ask: bool
    """Whether it asks for the partition id and the number of examples."""
    required: bool
    """Whether at least one node must reply, because the selection or the judge will send further queries."""
    by_partition: bool
    """Whether the partition id is the client's number. In a simulation, node ids differ in every run."""


class GridClients:
    """Nodes as clients. An invalid reply affects only its node. Events that concern no single client are notes."""

    def __init__(
        self,
        grid: Grid,
        strategy: WrappedStrategy,
        layout: Layout,
        registry: NodeRegistry,
        deadlines: Deadlines,
        handshake: Handshake,
        train_config: ConfigRecord,
        max_examples: int = MAX_EXAMPLES,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._grid, self._strategy, self._layout, self._registry = grid, strategy, layout, registry
        self._deadlines, self._handshake, self._train_config = deadlines, handshake, train_config
        self._max_examples, self._sleep = max_examples, sleep
        self._sent: tuple[Weights, ArrayRecord] | None = None
        self._messaging = Messaging(grid, deadlines.reply)
        self._handshake_done = False

    def take_notes(self) -> list[str]:
        """Events since the last call that concern no single client."""
        return self._messaging.take_notes()

    def arrays(self, weights: Weights) -> ArrayRecord:
        """Weights as a record, made once for all messages that carry them."""
        if self._sent is None or self._sent[0] is not weights:
            self._sent = weights, to_arrays(weights, self._layout)
        return self._sent[1]

    def reuse(self, weights: Weights, arrays: ArrayRecord) -> None:
        """Use an existing record for these weights, unless its arrays have other types than the model's."""
        types = {entry.name: str(entry.dtype).removeprefix("torch.") for entry in self._layout.entries}
        if types == {name: array.dtype for name, array in arrays.items()}:
            self._sent = weights, arrays

    # The nodes.

    @property
    def num_clients(self) -> int:
        return len(self._registry)

    def connected(self) -> Ids:
        """The clients whose nodes are connected now. Waits for enough of them, up to the deadline."""
        deadlines, since = self._deadlines, time.monotonic()
        while len(nodes := {int(node.node_id): node for node in self._grid.get_nodes()}) < deadlines.min_nodes:
            if time.monotonic() - since >= deadlines.nodes:
                raise RunError(
                    f"only {len(nodes)} of the {deadlines.min_nodes} required nodes are connected after "
                    f"{deadlines.nodes:g} s; start more SuperNodes (in a simulation: --federation-config "
                    "num-supernodes=N), lower min_nodes, or raise wait"
                )
            self._sleep(min(1.0, deadlines.nodes / 10))
        if new := sorted(node for node in nodes if not self._registry.knows(node)):
            names = {node: nodes[node].name or f"node-{node}" for node in new}
            self._register(new, names, list(nodes))
        return np.array(sorted(self._registry.client_of(n) for n in nodes if self._registry.knows(n)), dtype=np.int64)

    def _register(self, new: Sequence[int], names: dict[int, str], connected: Sequence[int]) -> None:
        replies = self._hello(new) if self._handshake.ask else {}
        for node in new:
            partition, num_examples = replies.get(node, (None, 0))
            if self._handshake.by_partition and partition is not None:
                name = f"partition-{partition}"
                if not self._registry.add_as(partition, node, connected, name, num_examples):
                    self._messaging.note(f"node {node} is left out: its partition {partition} is taken")
                continue
            self._registry.add(node, names[node], num_examples)
        self._registry.save()

    def _hello(self, nodes: Sequence[int]) -> dict[int, tuple[int | None, int]]:
        """Node -> its partition id and number of examples, of the nodes that reply."""
        messages = [Message(RecordDict(), node, f"{MessageType.QUERY}.{HELLO}") for node in nodes]
        found: dict[int, tuple[int | None, int]] = {}
        failed = ""
        for node, reply in self._messaging.request(messages).items():
            if isinstance(reply, Failure):
                failed = reply.reason
                continue
            try:
                metrics = one(reply.content.metric_records, "metrics")
                partition = metrics.get("partition-id")
                known = isinstance(partition, int) and partition >= 0
                found[node] = (partition if known else None, _num_examples(metrics["num-examples"], MAX_EXAMPLES))
            except (Mismatch, KeyError, TypeError) as error:
                failed = f"the reply cannot be read ({error})"
        self._handshake_done |= bool(found)
        if self._handshake.required and not self._handshake_done:
            raise RunError(
                f"the selection or the filter sends queries to clients, but no node can answer them ({failed}); "
                "add filfl.flower.add_queries(app, load) to the ClientApp"
            )
        return found

    # The requests of the algorithm (filfl.core.clients.Clients).

    def train(self, t: int, ids: Sequence[int], weights: Weights) -> dict[int, Update | Failure]:
        return self._by_client(ids, self._messaging.request(self._train_messages(t, ids, weights)), self._update)

    def query(self, query: Query, ids: Sequence[int], weights: Weights) -> dict[int, Any]:
        def read(k: int, reply: Message) -> Any:
            if query.is_vector:
                return to_gradient(one(reply.content.array_records, "arrays"), self._layout)
            return float(one(reply.content.metric_records, "metrics")[query.name])

        content = RecordDict({"arrays": self.arrays(weights), "config": ConfigRecord({"split": query.split})})
        kind = f"{MessageType.QUERY}.{query_name(query.name)}"
        messages = [Message(content, self._registry.node_of(k), kind) for k in ids]
        return self._by_client(ids, self._messaging.request(messages), read)

    def train_for_logits(
        self, t: int, ids: Sequence[int], weights: Weights, request: LogitRequest
    ) -> dict[int, LogitReply | Failure]:
        def send(ids: Sequence[int], with_V: frozenset[int]) -> dict[int, Message | Failure]:
            plain = self._train_messages(t, ids, weights)
            nodes = frozenset(self._registry.node_of(k) for k in with_V)
            # A selected client is asked once more in this round, with the same deadline; then another may be selected.
            return self._messaging.request(logit_requests(plain, request, nodes, t, 3 * self._deadlines.reply))

        replies = send(ids, request.new_recipients.intersection(ids))
        # A node that was restarted has lost V: repeat the request, with V.
        lost = [k for k in ids if _refusal(replies[self._registry.node_of(k)]) == NO_V]
        if lost:
            replies |= send(lost, frozenset(lost))

        def read(k: int, reply: Message) -> LogitReply:
            if reason := refusal(reply):
                raise Mismatch(reason)
            logits = logits_of(reply)
            n, train_loss = self._metrics_of(k, reply)
            return LogitReply(logits, n, train_loss)

        return {k: replace(reply, resent=k in lost) for k, reply in self._by_client(ids, replies, read).items()}

    def upload(self, t: int, ids: Sequence[int]) -> dict[int, Update | Failure]:
        def read(k: int, reply: Message) -> Update:
            if reason := refusal(reply):
                raise Mismatch(reason)
            return self._update(k, reply)

        requests = [upload_request(self._registry.node_of(k), t) for k in ids]
        return self._by_client(ids, self._messaging.request(requests), read)

    def num_examples(self, ids: AnyIds) -> NDArray[np.int64]:
        return np.array([self._registry.examples_of(int(k)) for k in ids], dtype=np.int64)

    def evaluate(self, t: int, ids: Sequence[int], weights: Weights, config: ConfigRecord) -> list[Message]:
        """The replies of these clients to Flower's own evaluation of the model. Failures are notes."""
        nodes = [self._registry.node_of(k) for k in ids]
        messages = self._strategy.evaluate_messages(t, self.arrays(weights), config, nodes, self._grid)
        usable = []
        for node, reply in self._messaging.request(messages).items():
            try:
                if isinstance(reply, Failure):
                    raise Mismatch(reply.reason)
                metrics = one(reply.content.metric_records, "metrics")
                _num_examples(metrics[self._strategy.weighted_by], self._max_examples)
                usable.append(reply)
            except (Mismatch, KeyError, TypeError) as error:
                k, reason = self._registry.client_of(node), one_line(str(error))
                self._messaging.note(f"client {k} did not evaluate the model of round {t}: {reason}")
        return usable

    # Messages.

    def _train_messages(self, t: int, ids: Sequence[int], weights: Weights) -> list[Message]:
        nodes = [self._registry.node_of(k) for k in ids]
        return self._strategy.train_messages(t, self.arrays(weights), self._train_config, nodes, self._grid)

    def _update(self, k: int, reply: Message) -> Update:
        n, train_loss = self._metrics_of(k, reply)
        arrays = one(reply.content.array_records, "arrays")
        return Update({name: array.numpy() for name, array in arrays.items()}, n, train_loss, message=reply)

    def _metrics_of(self, k: int, reply: Message) -> tuple[int, float]:
        """The number of examples and the train loss in a reply."""
        metrics = one(reply.content.metric_records, "metrics")
        if self._strategy.weighted_by not in metrics:
            raise Mismatch(f"the metrics have no {self._strategy.weighted_by}")
        n = _num_examples(metrics[self._strategy.weighted_by], self._max_examples)
        if (first := self._registry.examples_of(k)) and n > MAX_GROWTH * first:
            raise Mismatch(f"it claims {n:,} examples, but reported {first:,} at first")
        self._registry.set_examples(k, n)
        loss = next((metrics[name] for name in LOSS_NAMES if name in metrics), math.nan)
        return n, float(loss) if isinstance(loss, int | float) else math.nan

    def _by_client(
        self, ids: Sequence[int], replies: dict[int, Message | Failure], read: Callable[[int, Message], Reply]
    ) -> dict[int, Reply | Failure]:
        result: dict[int, Reply | Failure] = {}
        for k in ids:
            reply = replies[self._registry.node_of(k)]
            if isinstance(reply, Failure):
                result[k] = reply
                continue
            try:
                result[k] = read(k, reply)
            except Mismatch as reason:
                result[k] = Failure(one_line(str(reason)), size_of(reply))
            except Exception as error:  # an invalid reply affects only the node that sent it
                unreadable = f"the reply cannot be read ({type(error).__name__}: {one_line(str(error))})"
                result[k] = Failure(unreadable, size_of(reply))
        return result


def _refusal(reply: Message | Failure) -> str | None:
    """The reason of a refusal, where it can be read; anything else is handled where the reply is read."""
    with suppress(Exception):
        return None if isinstance(reply, Failure) else refusal(reply)
    return None


def _num_examples(value: Any, most: int) -> int:
    """The number of examples in a message. Some apps send it as a float."""
    if isinstance(value, list) or not math.isfinite(value) or not 0 < value <= most:
        raise Mismatch(f"the number of examples must be between 1 and {most:,} (got {value!r})")
    return max(1, round(float(value)))
