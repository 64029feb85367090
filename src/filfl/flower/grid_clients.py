"""The `Clients` protocol over a Flower Grid: requests to clients become messages to nodes."""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from logging import INFO
from typing import Any, cast

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.common import log
from flwr.serverapp import Grid
from numpy.typing import NDArray

from filfl.availability.base import Ids
from filfl.core.clients import Evaluated, Failure, Update
from filfl.core.guard import MAX_EXAMPLES, Guard, RoundGuard
from filfl.core.queries import Query
from filfl.errors import RunError
from filfl.flower.client_queries import HELLO, query_name
from filfl.flower.logit_messages import NO_V, logit_requests, logits_of, raise_refusal, upload_request
from filfl.flower.messaging import MOD_SEES_QUERIES, Messaging, Reply
from filfl.flower.node_registry import NodeRegistry, safe_name
from filfl.flower.records import (
    DecodedOnAccess,
    arrays_of,
    metrics_of,
    one,
    to_arrays,
    to_gradient,
    with_integers,
    with_metrics,
)
from filfl.flower.wrapped_strategy import OnlyNodes, WrappedStrategy
from filfl.logits.messages import LogitReply, LogitRequest
from filfl.selection.base import AnyIds, Queries
from filfl.weights import Layout, Mismatch, Weights

MAX_GROWTH = 10
"""A node is refused if it claims more than this many times the examples it reported first: it would dominate the
average."""
HELLO_TYPE = f"{MessageType.QUERY}.{HELLO}"
NO_FUNCTION = "No query function registered"
"""What Flower says of a ClientApp without a function for a query."""
MOST_TRACEBACKS = 3
LOSS_NAMES = ("train_loss", "train-loss", "loss")
"""The names that clients use for their train loss."""


@dataclass(kw_only=True, eq=False)
class GridClients:
    """Nodes as clients. An invalid reply affects only its node. Events that concern no single client are notes."""

    messaging: Messaging
    strategy: WrappedStrategy
    layout: Layout
    registry: NodeRegistry
    max_examples: int
    guard: Guard
    min_nodes: int
    """How many nodes must be connected."""
    wait: float
    """For how many seconds the server waits for them."""
    queries: Queries
    """Whether the selection or the judge sends queries to clients. "always": at least one node must answer them."""
    by_partition: bool
    """Whether the partition id is the client's number. In a simulation, node ids differ in every run."""
    simulated: bool
    """Whether Flower's simulation engine runs the nodes: then all of them are connected from the start."""
    train_config: ConfigRecord = field(default_factory=ConfigRecord)
    """The config of the messages to train. The strategy may change it over the rounds."""
    _sent: tuple[Weights, ArrayRecord] | None = field(default=None, init=False)
    _asked: list[Message] | None = field(default=None, init=False)
    _replies: Sequence[Message] = field(default=(), init=False)
    _handshake_done: bool = field(default=False, init=False)

    def take_notes(self) -> list[str]:
        return self.messaging.take_notes()

    def arrays(self, weights: Weights) -> ArrayRecord:
        """Weights as a record, made once for all messages that carry them."""
        if self._sent is None or self._sent[0] is not weights:
            self._sent = weights, to_arrays(weights, self.layout)
        return self._sent[1]

    def reuse(self, weights: Weights, arrays: ArrayRecord) -> None:
        """Send these weights as the strategy made them: FedAdam, for example, returns float64. Integers, of which a
        mean makes floats, are sent as integers."""
        self._sent = weights, with_integers(arrays, self.layout)

    # The nodes.

    @property
    def num_clients(self) -> int:
        return len(self.registry.by_client)

    def connected(self) -> Ids:
        """The clients whose nodes are connected now. Waits for enough of them, up to the deadline."""
        nodes = self._nodes()
        since, told = time.monotonic(), -1
        while len(nodes) < self.min_nodes:
            enough = "(in a simulation: --federation-config num-supernodes=N)"
            if self.simulated:
                raise RunError(
                    f"the simulation has {len(nodes)} nodes, but {self.min_nodes} are required; start more {enough}, "
                    "or lower k or min_nodes"
                )
            if time.monotonic() - since >= self.wait:
                raise RunError(
                    f"only {len(nodes)} of the {self.min_nodes} required nodes are connected after {self.wait:g} s; "
                    f"start more SuperNodes {enough}, lower min_nodes, or raise wait"
                )
            if len(nodes) != told:
                told = len(nodes)
                log(INFO, "waiting for nodes, at most %g s: %d of %d are connected", self.wait, told, self.min_nodes)
            time.sleep(min(1.0, self.wait / 10))
            nodes = self._nodes()
        if nodes.keys() - self.registry.by_node.keys():
            self._register(nodes)
        known = self.registry.by_node
        return np.array(sorted(known[node].client for node in nodes if node in known), dtype=np.int64)

    def _nodes(self) -> dict[int, str]:
        """Node -> its name, in the order in which the nodes were registered with Flower."""
        found = sorted(self.messaging.grid.get_nodes(), key=lambda n: (str(getattr(n, "registered_at", "")), n.node_id))
        return {int(node.node_id): safe_name(node.name or "", node.node_id) for node in found}

    def _register(self, connected: Mapping[int, str]) -> None:
        """Give client numbers to the nodes that were not seen before."""
        new = [node for node in connected if node not in self.registry.by_node]
        asks = self.queries != "never" or (self.by_partition and not self.simulated)
        replies = self._hello(new) if asks else {}
        reported = {node: reply[0] for node, reply in replies.items() if reply[0] is not None}
        if self.simulated and len(reported) < len(new):
            # The simulation engine registers its nodes in the order of their partitions, all at once.
            reported = {node: position for position, node in enumerate(connected)}
        for node in new:
            partition, num_examples = reported.get(node), replies.get(node, (None, 0))[1]
            if not self.by_partition or partition is None:
                self.registry.add(node, connected[node], num_examples)
            elif reason := self.registry.add_as(partition, node, list(connected), num_examples):
                self.messaging.note(f"node {node} is left out: {reason}")
        self.registry.save()

    def _hello(self, nodes: Sequence[int]) -> dict[int, tuple[int | None, int]]:
        """Node -> its partition id and number of examples, of the nodes that reply.

        Where nobody has answered yet, nodes are asked one by one: Flower logs a traceback for each ClientApp without a
        function for queries. After three of them no more are asked.
        """

        def read(reply: Message) -> tuple[int | None, int]:
            metrics = one(reply.content.metric_records, "metrics")
            partition = metrics.get("partition-id")
            known = isinstance(partition, int) and partition >= 0
            return partition if known else None, _num_examples(metrics, "num-examples", MAX_EXAMPLES)

        def ask(nodes: Sequence[int]) -> dict[int, tuple[int | None, int] | Failure]:
            return self.messaging.request([Message(RecordDict(), node, HELLO_TYPE) for node in nodes], read)

        replies, rest, lacking = dict[int, Any](), list(nodes), 0
        while rest and lacking == len(replies) < MOST_TRACEBACKS and not self._handshake_done:
            replies |= (reply := ask([rest.pop(0)]))
            lacking += any(isinstance(r, Failure) and NO_FUNCTION in r.reason for r in reply.values())
        if self._handshake_done or lacking < len(replies):
            replies |= ask(rest)
        found = {node: reply for node, reply in replies.items() if not isinstance(reply, Failure)}
        self._handshake_done |= bool(found)
        if not self._handshake_done:
            reason = min(reply.reason for reply in replies.values() if isinstance(reply, Failure))
            refused_by_mod = MOD_SEES_QUERIES in reason  # which says what to do
            if self.queries == "always":
                raise RunError(
                    f"the selection or the filter sends queries to clients, but no node can answer them ({reason})"
                    + ("" if refused_by_mod else "; add filfl.flower.add_queries(app, load) to the ClientApp")
                )
            self.messaging.note(
                f"the ClientApp answers no queries ({reason})"
                + ("" if refused_by_mod else "; filfl.flower.add_queries adds them")
            )
        return found

    # The requests of the algorithm (filfl.core.clients.Clients).

    def ask_to_train(self, t: int, ids: Sequence[int], weights: Weights) -> list[Message]:
        """The messages to train, for a caller that sends them itself and then hands over their replies."""
        self._asked, self._replies = self._train_messages(t, ids, weights) if ids else [], ()
        return list(self._asked)

    def hand_over(self, replies: Iterable[Message]) -> None:
        """The replies to the messages of `ask_to_train`."""
        self._replies = list(replies)

    def train(self, t: int, ids: Sequence[int], weights: Weights) -> dict[int, Update | Failure]:
        if self._asked is None:
            return self._request(ids, self._train_messages(t, ids, weights), self._update)
        messages, replies = self._asked, self._replies
        self._asked, self._replies = None, ()
        return self._by_client(ids, self.messaging.read(messages, replies, self._update))

    def query(self, query: Query, ids: Sequence[int], weights: Weights) -> dict[int, Any]:
        def read(reply: Message) -> Any:
            if query.is_vector:
                return to_gradient(one(reply.content.array_records, "arrays"), self.layout)
            return float(one(reply.content.metric_records, "metrics")[query.name])

        content = RecordDict({"arrays": self.arrays(weights), "config": ConfigRecord({"split": query.split})})
        kind = f"{MessageType.QUERY}.{query_name(query.name)}"
        return self._request(ids, [Message(content, self.registry.by_client[k].node_id, kind) for k in ids], read)

    def train_for_logits(
        self, t: int, ids: Sequence[int], weights: Weights, request: LogitRequest
    ) -> dict[int, LogitReply | Failure]:
        def read(reply: Message) -> LogitReply:
            return LogitReply(logits_of(reply), *self._metrics_of(reply))

        plain = {message.metadata.dst_node_id: message for message in self._train_messages(t, ids, weights)}

        def send(ids: Sequence[int], with_V: frozenset[int]) -> dict[int, LogitReply | Failure]:
            messages = [plain[node] for k in ids if (node := self.registry.by_client[k].node_id) in plain]
            nodes = frozenset(self.registry.by_client[k].node_id for k in with_V)
            # A selected client is asked once more in this round, with the same deadline; then another may be selected.
            return self._request(ids, logit_requests(messages, request, nodes, t, 3 * self.messaging.deadline), read)

        replies = send(ids, request.new_recipients.intersection(ids))
        # A node that was restarted has lost V: repeat the request, with V.
        lost = [k for k, reply in replies.items() if isinstance(reply, Failure) and reply.reason == NO_V]
        if lost:
            replies |= send(lost, frozenset(lost))
        return {k: replace(reply, resent=k in lost) for k, reply in replies.items()}

    def upload(self, t: int, ids: Sequence[int]) -> dict[int, Update | Failure]:
        return self._request(ids, [upload_request(self.registry.by_client[k].node_id, t) for k in ids], self._update)

    def num_examples(self, ids: AnyIds) -> NDArray[np.int64]:
        return np.array([self.registry.by_client[int(k)].num_examples for k in ids], dtype=np.int64)

    def ask_to_evaluate(self, t: int, ids: Sequence[int], weights: Weights, config: ConfigRecord) -> list[Message]:
        """The messages of Flower's own evaluation of the model."""
        return self.strategy.evaluate_messages(t, self.arrays(weights), config, self._only(ids))

    def evaluations(
        self, t: int, ids: Sequence[int], weights: Weights, messages: Sequence[Message], replies: Iterable[Message]
    ) -> list[Message]:
        """The replies to them that passed the guard. Failures are notes."""

        def read(reply: Message) -> Evaluated:
            _, metrics = metrics_of(reply, self.strategy.weighted_by)
            n = _num_examples(metrics, self.strategy.weighted_by, self.max_examples)
            scores = {name: value for name, value in metrics.items() if name != self.strategy.weighted_by}
            return Evaluated(n, {name: float(v) for name, v in scores.items() if not isinstance(v, list)}, reply)

        found = self._by_client(ids, self.messaging.read(messages, replies, read))
        guard = RoundGuard(self.guard, self.layout, weights)
        passed, refused = guard.evaluations(found)
        for note in guard.notes:
            self.messaging.note(note)
        for k, reason in refused.items():
            self.messaging.note(f"the test of client {k} in round {t} cannot be used: {reason}")
        return [with_metrics(reply.message, reply.metrics, self.strategy.weighted_by) for reply in passed.values()]

    # Messages.

    def _only(self, ids: Sequence[int]) -> Grid:
        return cast(Grid, OnlyNodes([self.registry.by_client[k].node_id for k in ids], self.messaging.grid))

    def _train_messages(self, t: int, ids: Sequence[int], weights: Weights) -> list[Message]:
        return self.strategy.train_messages(t, self.arrays(weights), self.train_config, self._only(ids))

    def _request(
        self, ids: Sequence[int], messages: Sequence[Message], read: Callable[[Message], Reply]
    ) -> dict[int, Reply | Failure]:
        return self._by_client(ids, self.messaging.request(messages, read))

    def _by_client(self, ids: Sequence[int], replies: Mapping[int, Reply | Failure]) -> dict[int, Reply | Failure]:
        """The replies by client. A strategy may ask fewer nodes than were selected."""
        not_asked = Failure(f"{self.strategy.name} did not ask this node")
        return {k: replies.get(self.registry.by_client[k].node_id, not_asked) for k in ids}

    def _update(self, reply: Message) -> Update:
        raise_refusal(reply)
        n, train_loss = self._metrics_of(reply)
        _, arrays = arrays_of(reply, self.strategy.arrays_key)
        return Update(DecodedOnAccess(arrays, self.layout), n, train_loss, message=reply)

    def _metrics_of(self, reply: Message) -> tuple[int, float]:
        """The number of examples and the train loss in a reply."""
        _, metrics = metrics_of(reply, self.strategy.weighted_by)
        n = _num_examples(metrics, self.strategy.weighted_by, self.max_examples)
        node = self.registry.by_node[reply.metadata.src_node_id]
        if node.num_examples and n > MAX_GROWTH * node.num_examples:
            raise Mismatch(f"it claims {n:,} examples, but reported {node.num_examples:,} at first")
        node.num_examples = node.num_examples or n
        loss = next((metrics[name] for name in LOSS_NAMES if name in metrics), math.nan)
        return n, float(loss) if isinstance(loss, int | float) else math.nan


def _num_examples(metrics: MetricRecord, name: str, most: int) -> int:
    """The number of examples in the metrics of a message. Some apps send it as a float."""
    if name not in metrics:
        raise Mismatch(f"the metrics have no {name}")
    value = metrics[name]
    if isinstance(value, list) or not math.isfinite(value) or not 0 < value <= most:
        raise Mismatch(f"the number of examples must be between 1 and {most:,} (got {value!r})")
    return max(1, round(float(value)))
