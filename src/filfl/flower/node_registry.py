"""The registry of nodes: a federation's nodes have random 64-bit ids, the algorithm's clients are numbered from 0."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from filfl.errors import RunError, one_line
from filfl.runs.client_table import NOT_SEEN, ClientTable
from filfl.runs.files import write_atomic

NODES = "nodes.json"
MAX_NAME = 100
"""The number of characters that are kept of a node's name."""


@dataclass
class Node:
    """A node that was seen, and what is known about it."""

    node_id: int
    client: int
    name: str
    num_examples: int = 0
    """The number that it reported first; 0 if it has not reported any."""


def safe_name(name: str, node_id: int) -> str:
    """The name of a node for files, logs and terminals. One that had to be changed ends with the node id, so that it
    cannot pass for the name of another node, such as a trusted one."""
    shown = one_line(name, MAX_NAME)
    if shown == name:
        return name or f"node-{node_id}"
    return f"{shown} (node {node_id})"


def max_partition(num_nodes: int) -> int:
    """The largest partition id that is accepted as a client number: the table of clients has a row for every number up
    to the largest one."""
    return 1000 + 10 * num_nodes


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

    def add_as(self, client: int, node_id: int, connected: Sequence[int], num_examples: int = 0) -> str | None:
        """Give a node the number of its partition; or the reason why it cannot have it."""
        most = max_partition(len(self.by_node.keys() | set(connected)))
        if not 0 <= client <= most:
            return f"its partition id {client} is not between 0 and {most}, the limit for this number of nodes"
        holder = self.by_client.get(client)
        if holder and holder.node_id != node_id:
            if holder.node_id in connected:
                return f"its partition {client} is taken"
            del self.by_node[holder.node_id]
        self._put(Node(node_id, client, f"partition-{client}", num_examples))
        return None

    def named(self, names: Sequence[str]) -> list[int]:
        """The clients with these names."""
        return [client for client, node in self.by_client.items() if node.name in names]

    def names(self) -> dict[int, str]:
        """The names of the clients that were given one, by number."""
        return {k: node.name for k, node in self.by_client.items() if node.name != f"node-{node.node_id}"}

    def save(self) -> None:
        if self._path:
            rows = [asdict(node) for _, node in sorted(self.by_client.items())]
            write_atomic(self._path, (json.dumps(rows, indent=1) + "\n").encode())

    def registered(self, trusted: Sequence[str] = ()) -> ClientTable:
        """The clients as listed in a run directory, without gaps. `trusted`: the names of those that are trusted."""
        numbers = range(max(self.by_client, default=-1) + 1)
        nodes = [self.by_client.get(k, Node(0, k, NOT_SEEN)) for k in numbers]
        return ClientTable(
            np.array([node.name for node in nodes], dtype=np.str_),
            np.array([node.num_examples for node in nodes], dtype=np.int64),
            np.full(len(nodes), "", dtype=object),
            np.array([node.name in trusted for node in nodes], dtype=bool),
        )

    def _put(self, node: Node) -> None:
        self.by_node[node.node_id] = self.by_client[node.client] = node
