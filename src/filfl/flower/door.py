"""The `Clients` door over a Flower Grid: what the algorithm asks of clients, as messages to nodes."""

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
from torch import Tensor

from filfl.aggregation.guard import MOST_EXAMPLES
from filfl.availability.base import Ids
from filfl.clients import Failure, Job, Rehearsed, Sheet, Split, Update
from filfl.errors import RunError, one_line
from filfl.flower.by_logits import logits_of, questions, refusal, upload_question
from filfl.flower.inner import Inner
from filfl.flower.keeping import NO_V
from filfl.flower.mail import Mail
from filfl.flower.queries import GRADIENT, HELLO, LOSS
from filfl.flower.records import one, size_of, to_arrays, to_gradient
from filfl.flower.roster import Roster
from filfl.selection.base import AnyIds
from filfl.weights import Layout, Mismatch, Weights

Answer = TypeVar("Answer")

GROWTH = 10
"""A node that claims so many times the examples that it first said is refused: it would take over the average."""
LOSS_NAMES = ("train_loss", "train-loss", "loss")
"""What clients call their train loss."""


@dataclass(frozen=True)
class Patience:
    """How long the server waits, in seconds, and for how many nodes."""

    answer: float
    """For the answers to one question; what comes later is dropped."""
    nodes: float
    """For enough nodes to be connected."""
    at_least: int
    """How many are enough."""


@dataclass(frozen=True)
class Manners:
    """What the server asks of a node that it sees for the first time."""

    hello: bool
    """Whether it asks for the partition id and the number of examples."""
    must_answer: bool
    """Whether somebody has to answer: the selection will ask more."""
    by_partition: bool
    """Whether the partition id is the client's number. In a simulation node ids are drawn anew in every run."""


class GridClients:
    """Nodes as clients. Whatever a node does costs only itself; what belongs to no client is in `remarks`."""

    def __init__(
        self,
        grid: Grid,
        inner: Inner,
        layout: Layout,
        roster: Roster,
        patience: Patience,
        manners: Manners,
        train_config: ConfigRecord,
        most_examples: int = MOST_EXAMPLES,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._grid, self._inner, self._layout, self._roster = grid, inner, layout, roster
        self._patience, self._manners, self._train_config = patience, manners, train_config
        self._most_examples, self._sleep = most_examples, sleep
        self._sent: tuple[Weights, ArrayRecord] | None = None
        self._mail = Mail(grid, patience.answer)
        self._answered_hello = False
        self.round = 0

    def remarks(self) -> list[str]:
        """What happened in this round that no client is to blame for; said once."""
        return self._mail.remarks()

    def arrays(self, weights: Weights) -> ArrayRecord:
        """Weights as a record; made once, however many messages carry them."""
        if self._sent is None or self._sent[0] is not weights:
            self._sent = weights, to_arrays(weights, self._layout)
        return self._sent[1]

    def keep(self, weights: Weights, arrays: ArrayRecord) -> None:
        """Remember a record of these weights, unless its arrays have other types than the model's."""
        types = {entry.name: str(entry.dtype).removeprefix("torch.") for entry in self._layout.entries}
        if types == {name: array.dtype for name, array in arrays.items()}:
            self._sent = weights, arrays

    # Who is here.

    def connected(self) -> Ids:
        """The clients whose nodes are connected now. Waits for enough of them, but not for ever."""
        patience, since = self._patience, time.monotonic()
        while len(nodes := {int(node.node_id): node for node in self._grid.get_nodes()}) < patience.at_least:
            if time.monotonic() - since >= patience.nodes:
                raise RunError(
                    f"{len(nodes)} nodes are connected after {patience.nodes:g} s, and {patience.at_least} are needed: "
                    "start more SuperNodes (in a simulation: --federation-config num-supernodes=N), or lower "
                    "min_nodes, or raise wait"
                )
            self._sleep(min(1.0, patience.nodes / 10))
        if new := sorted(node for node in nodes if not self._roster.knows(node)):
            names = {node: nodes[node].name or f"node-{node}" for node in new}
            self._welcome(new, names, list(nodes))
        return np.array(sorted(self._roster.client_of(n) for n in nodes if self._roster.knows(n)), dtype=np.int64)

    def _welcome(self, new: Sequence[int], names: dict[int, str], connected: Sequence[int]) -> None:
        said = self._hello(new) if self._manners.hello else {}
        for node in new:
            partition, num_examples = said.get(node, (None, 0))
            if self._manners.by_partition and partition is not None:
                name = f"partition-{partition}"
                if not self._roster.take_place(node, partition, connected, name, num_examples):
                    self._mail.remark(f"node {node} says that it is partition {partition}, which is taken: left out")
                continue
            self._roster.add(node, names[node], num_examples)
        self._roster.save()

    def _hello(self, nodes: Sequence[int]) -> dict[int, tuple[int | None, int]]:
        """Node -> its partition id and number of examples, of those that say."""
        messages = [Message(RecordDict(), node, f"{MessageType.QUERY}.{HELLO}") for node in nodes]
        said: dict[int, tuple[int | None, int]] = {}
        failed = ""
        for node, answer in self._mail.ask(messages).items():
            if isinstance(answer, Failure):
                failed = answer.reason
                continue
            try:
                metrics = one(answer.content.metric_records, "metrics")
                partition = metrics.get("partition-id")
                known = isinstance(partition, int) and partition >= 0
                said[node] = (partition if known else None, _count(metrics["num-examples"], MOST_EXAMPLES))
            except (Mismatch, KeyError, TypeError) as error:
                failed = f"its answer cannot be read ({error})"
        self._answered_hello |= bool(said)
        if self._manners.must_answer and not self._answered_hello:
            raise RunError(
                f"this selection asks clients about their data, and no node can answer ({failed}): "
                "add filfl.flower.add_queries(app, load) to the ClientApp"
            )
        return said

    # What the algorithm asks (filfl.clients.Clients).

    def train(self, ids: Sequence[int], weights: Weights, job: Job) -> dict[int, Update | Failure]:
        nodes = [self._roster.node_of(k) for k in ids]
        messages = self._inner.train_messages(job.round, self.arrays(weights), self._train_config, nodes, self._grid)
        return self._by_client(ids, self._mail.ask(messages), self._update)

    def losses(self, ids: Sequence[int], weights: Weights, split: Split) -> dict[int, float | Failure]:
        def loss(k: int, reply: Message) -> float:
            return float(one(reply.content.metric_records, "metrics")["loss"])

        return self._by_client(ids, self._query(ids, LOSS, weights, split), loss)

    def gradients(self, ids: Sequence[int], weights: Weights) -> dict[int, Tensor | Failure]:
        def gradient(k: int, reply: Message) -> Tensor:
            return to_gradient(one(reply.content.array_records, "arrays"), self._layout)

        return self._by_client(ids, self._query(ids, GRADIENT, weights, "train"), gradient)

    def rehearse(self, ids: Sequence[int], weights: Weights, job: Job, sheet: Sheet) -> dict[int, Rehearsed | Failure]:
        new = frozenset(self._roster.node_of(k) for k in sheet.new.intersection(ids))
        answers = self._rehearse([self._roster.node_of(k) for k in ids], weights, job, sheet, new)
        # A node that was started anew has lost what it was sent before: asked again, with V.
        lost = frozenset(node for node, answer in answers.items() if _says(answer) == NO_V)
        if lost:
            answers |= self._rehearse(sorted(lost), weights, job, sheet, lost)

        def read(k: int, reply: Message) -> Rehearsed:
            if said := refusal(reply):
                raise Mismatch(said)
            logits = logits_of(reply)
            n, train_loss = self._metrics_of(k, reply)
            return Rehearsed(logits, n, train_loss)

        heard = self._by_client(ids, answers, read)
        return {k: replace(each, twice=self._roster.node_of(k) in lost) for k, each in heard.items()}

    def _rehearse(
        self, nodes: Sequence[int], weights: Weights, job: Job, sheet: Sheet, with_V: frozenset[int]
    ) -> dict[int, Message | Failure]:
        plain = self._inner.train_messages(job.round, self.arrays(weights), self._train_config, nodes, self._grid)
        # Who is chosen is asked once more in this round, with the same deadline; then others may be chosen instead.
        return self._mail.ask(questions(plain, sheet, with_V, job.round, 3 * self._patience.answer))

    def upload(self, ids: Sequence[int], round: int) -> dict[int, Update | Failure]:
        def read(k: int, reply: Message) -> Update:
            if said := refusal(reply):
                raise Mismatch(said)
            return self._update(k, reply)

        return self._by_client(
            ids, self._mail.ask([upload_question(self._roster.node_of(k), round) for k in ids]), read
        )

    def num_examples(self, ids: AnyIds) -> NDArray[np.int64]:
        return np.array([self._roster.examples_of(int(k)) for k in ids], dtype=np.int64)

    def evaluate(self, t: int, ids: Sequence[int], weights: Weights, config: ConfigRecord) -> list[Message]:
        """The answers of these clients to Flower's own evaluation of the model. Who cannot is remarked."""
        nodes = [self._roster.node_of(k) for k in ids]
        answers = self._mail.ask(self._inner.evaluate_messages(t, self.arrays(weights), config, nodes, self._grid))
        usable = []
        for node, answer in answers.items():
            try:
                if isinstance(answer, Failure):
                    raise Mismatch(answer.reason)
                metrics = one(answer.content.metric_records, "metrics")
                _count(metrics[self._inner.weighted_by], self._most_examples)
                usable.append(answer)
            except (Mismatch, KeyError, TypeError) as error:
                k, why = self._roster.client_of(node), one_line(str(error))
                self._mail.remark(f"client {k} did not evaluate the model of round {t}: {why}")
        return usable

    def _update(self, k: int, reply: Message) -> Update:
        n, train_loss = self._metrics_of(k, reply)
        arrays = one(reply.content.array_records, "arrays")
        return Update({name: array.numpy() for name, array in arrays.items()}, n, train_loss, message=reply)

    def _metrics_of(self, k: int, reply: Message) -> tuple[int, float]:
        """The number of examples and the train loss that came with an answer."""
        metrics = one(reply.content.metric_records, "metrics")
        if self._inner.weighted_by not in metrics:
            raise Mismatch(f"the metrics have no {self._inner.weighted_by}")
        n = _count(metrics[self._inner.weighted_by], self._most_examples)
        if (first := self._roster.examples_of(k)) and n > GROWTH * first:
            raise Mismatch(f"it claims {n:,} examples, and said {first:,} at first")
        self._roster.learn(k, n)
        loss = next((metrics[name] for name in LOSS_NAMES if name in metrics), math.nan)
        return n, float(loss) if isinstance(loss, int | float) else math.nan

    # Messages.

    def _query(self, ids: Sequence[int], question: str, weights: Weights, split: str) -> dict[int, Message | Failure]:
        content = RecordDict({"arrays": self.arrays(weights), "config": ConfigRecord({"split": split})})
        kind = f"{MessageType.QUERY}.{question}"
        return self._mail.ask([Message(content, self._roster.node_of(k), kind) for k in ids])

    def _by_client(
        self, ids: Sequence[int], answers: dict[int, Message | Failure], read: Callable[[int, Message], Answer]
    ) -> dict[int, Answer | Failure]:
        result: dict[int, Answer | Failure] = {}
        for k in ids:
            answer = answers[self._roster.node_of(k)]
            if isinstance(answer, Failure):
                result[k] = answer
                continue
            try:
                result[k] = read(k, answer)
            except Mismatch as reason:
                result[k] = Failure(one_line(str(reason)), size_of(answer))
            except Exception as error:  # whatever a node sends, it costs only itself
                why = f"the answer cannot be read ({type(error).__name__}: {one_line(str(error))})"
                result[k] = Failure(why, size_of(answer))
        return result


def _says(answer: Message | Failure) -> str | None:
    """What a node says instead of an answer, as far as it can be read; whoever reads the answer sees what it is."""
    with suppress(Exception):
        return None if isinstance(answer, Failure) else refusal(answer)
    return None


def _count(value: Any, most: int) -> int:
    """A number of examples as it came in a message. Flower's users also send it as a float."""
    if isinstance(value, list) or not math.isfinite(value) or not 0 < value <= most:
        raise Mismatch(f"the number of examples must be between 1 and {most:,} (got {value!r})")
    return max(1, round(float(value)))
