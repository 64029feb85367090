"""Who is who: nodes of a federation have random 64-bit ids, clients of an algorithm are counted from 0."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from filfl.errors import RunError
from filfl.runs.files import write_whole
from filfl.runs.registered import Registered

NODES = "nodes.json"
UNKNOWN = "not seen"
"""The name of a client whose number was passed over."""
MOST_CLIENTS = 1_000_000
"""A node that gives itself a larger number is numbered by us."""


@dataclass
class Member:
    """A node that was seen, and what is known of it."""

    node_id: int
    client: int
    name: str
    num_examples: int = 0


class Roster:
    """A node keeps its client number for as long as the run directory lives: with a registered key it has the same node
    id when it comes back, so its history is its own."""

    def __init__(self, path: Path | None = None) -> None:
        """With a path, what is known survives the server."""
        self._path = path
        self._by_node: dict[int, Member] = {}
        self._by_client: dict[int, Member] = {}
        if path and path.exists():
            try:
                for row in json.loads(path.read_text(encoding="utf-8")):
                    self._put(Member(**row))
            except (ValueError, TypeError) as error:
                raise RunError(f"{path} is damaged ({error}): remove it, then every node counts as a new one") from None

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
        """A node that was not seen before gets the next number."""
        self._put(Member(node_id, max(self._by_client, default=-1) + 1, name, num_examples))

    def take_place(self, node_id: int, client: int, connected: Sequence[int], name: str, num_examples: int = 0) -> bool:
        """Give a node the number that it says it has, unless a node that is here has it already."""
        holder = self._by_client.get(client)
        if not 0 <= client < MOST_CLIENTS or (holder and holder.node_id != node_id and holder.node_id in connected):
            return False
        if holder:
            del self._by_node[holder.node_id]
        self._put(Member(node_id, client, name, num_examples))
        return True

    def learn(self, client: int, num_examples: int) -> None:
        """What a node says of its number of examples when it first trains."""
        if not self._by_client[client].num_examples:
            self._by_client[client].num_examples = num_examples

    def save(self) -> None:
        if self._path:
            rows = [asdict(member) for _, member in sorted(self._by_client.items())]
            write_whole(self._path, (json.dumps(rows, indent=1) + "\n").encode())

    def registered(self) -> Registered:
        """The clients as a run directory lists them, without gaps."""
        numbers = range(max(self._by_client, default=-1) + 1)
        nobody = Member(0, -1, UNKNOWN)
        rows: Mapping[int, Member] = self._by_client
        return Registered(
            np.array([rows.get(k, nobody).name for k in numbers], dtype=np.str_),
            np.array([rows.get(k, nobody).num_examples for k in numbers], dtype=np.int64),
            np.array(["" for _ in numbers], dtype=object),
        )

    def _put(self, member: Member) -> None:
        self._by_node[member.node_id] = self._by_client[member.client] = member
