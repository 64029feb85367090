"""The registry of nodes: a federation's nodes have random 64-bit ids, the algorithm's clients are numbered from 0."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from filfl.errors import RunError
from filfl.runs.client_table import ClientTable
from filfl.runs.files import write_atomic

NODES = "nodes.json"
UNKNOWN = "not seen"
"""The name of a client number without a node."""
MAX_CLIENTS = 1_000_000
"""Partition ids from this number on are not accepted as client numbers."""


@dataclass
class Node:
    """A node that was seen, and what is known about it."""

    node_id: int
    client: int
    name: str
    num_examples: int = 0


class NodeRegistry:
    """Assigns client numbers to nodes. A node keeps its number for the lifetime of the run directory: with a registered
    key it has the same node id when it reconnects."""

    def __init__(self, path: Path | None = None) -> None:
        """With a path, the registry is stored in a file, so that a resumed server has it."""
        self._path = path
        self._by_node: dict[int, Node] = {}
        self._by_client: dict[int, Node] = {}
        if path and path.exists():
            try:
                for row in json.loads(path.read_text(encoding="utf-8")):
                    self._put(Node(**row))
            except (ValueError, TypeError) as error:
                raise RunError(f"{path} is damaged ({error}); remove it, and every node is registered again") from None

    def __len__(self) -> int:
        return len(self._by_client)

    def knows(self, node_id: int) -> bool:
        return node_id in self._by_node

    def client_of(self, node_id: int) -> int:
        return self._by_node[node_id].client

    def node_of(self, client: int) -> int:
        return self._by_client[client].node_id

    def examples_of(self, client: int) -> int:
        return self._by_client[client].num_examples

    def add(self, node_id: int, name: str, num_examples: int = 0) -> None:
        """Give the next number to a node that was not seen before."""
        self._put(Node(node_id, max(self._by_client, default=-1) + 1, name, num_examples))

    def add_as(self, client: int, node_id: int, connected: Sequence[int], name: str, num_examples: int = 0) -> bool:
        """Give a node this number, unless another connected node has it."""
        holder = self._by_client.get(client)
        if not 0 <= client < MAX_CLIENTS or (holder and holder.node_id != node_id and holder.node_id in connected):
            return False
        if holder:
            del self._by_node[holder.node_id]
        self._put(Node(node_id, client, name, num_examples))
        return True

    def set_examples(self, client: int, num_examples: int) -> None:
        """Store the number of examples that a node reports first."""
        if not self._by_client[client].num_examples:
            self._by_client[client].num_examples = num_examples

    def save(self) -> None:
        if self._path:
            rows = [asdict(node) for _, node in sorted(self._by_client.items())]
            write_atomic(self._path, (json.dumps(rows, indent=1) + "\n").encode())

    def registered(self) -> ClientTable:
        """The clients as listed in a run directory, without gaps."""
        numbers = range(max(self._by_client, default=-1) + 1)
        unknown = Node(0, -1, UNKNOWN)
        rows: Mapping[int, Node] = self._by_client
        return ClientTable(
            np.array([rows.get(k, unknown).name for k in numbers], dtype=np.str_),
            np.array([rows.get(k, unknown).num_examples for k in numbers], dtype=np.int64),
            np.array(["" for _ in numbers], dtype=object),
        )

    def _put(self, node: Node) -> None:
        self._by_node[node.node_id] = self._by_client[node.client] = node
