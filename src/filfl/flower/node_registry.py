"""The registry of nodes: a federation's nodes have random 64-bit ids, the algorithm's clients are numbered from 0."""

import json
from collections.abc import Sequence
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
    """The number that it reported first; 0 if it has not reported any."""


class NodeRegistry:
    """Assigns client numbers to nodes. A node keeps its number for the lifetime of the run directory: with a registered
    key it has the same node id when it reconnects."""

    def __init__(self, path: Path | None = None) -> None:
        """With a path, the registry is stored in a file, so that a resumed server has it."""
        self._path = path
        self.by_node: dict[int, Node] = {}
        self.by_client: dict[int, Node] = {}
        if path and path.exists():
            try:
                for row in json.loads(path.read_text(encoding="utf-8")):
                    self._put(Node(**row))
            except (ValueError, TypeError) as error:
                raise RunError(f"{path} is damaged ({error}); remove it, and every node is registered again") from None

    def add(self, node_id: int, name: str, num_examples: int = 0) -> None:
        """Give the next number to a node that was not seen before."""
        self._put(Node(node_id, max(self.by_client, default=-1) + 1, name, num_examples))

    def add_as(self, client: int, node_id: int, connected: Sequence[int], name: str, num_examples: int = 0) -> bool:
        """Give a node this number, unless another connected node has it."""
        holder = self.by_client.get(client)
        if not 0 <= client < MAX_CLIENTS or (holder and holder.node_id != node_id and holder.node_id in connected):
            return False
        if holder:
            del self.by_node[holder.node_id]
        self._put(Node(node_id, client, name, num_examples))
        return True

    def named(self, names: Sequence[str]) -> list[int]:
        """The clients with these names."""
        return [client for client, node in self.by_client.items() if node.name in names]

    def save(self) -> None:
        if self._path:
            rows = [asdict(node) for _, node in sorted(self.by_client.items())]
            write_atomic(self._path, (json.dumps(rows, indent=1) + "\n").encode())

    def registered(self) -> ClientTable:
        """The clients as listed in a run directory, without gaps."""
        numbers = range(max(self.by_client, default=-1) + 1)
        nodes = [self.by_client.get(k, Node(0, k, UNKNOWN)) for k in numbers]
        return ClientTable(
            np.array([node.name for node in nodes], dtype=np.str_),
            np.array([node.num_examples for node in nodes], dtype=np.int64),
            np.full(len(nodes), "", dtype=object),
        )

    def _put(self, node: Node) -> None:
        self.by_node[node.node_id] = self.by_client[node.client] = node
