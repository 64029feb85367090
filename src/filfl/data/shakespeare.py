"""Shakespeare's roles as clients: predict the next character of their speeches."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from filfl.config.schema import Count, Share
from filfl.data.base import Dataset
from filfl.data.cache import cached
from filfl.data.characters import ALPHABET, WINDOW, Rows, read_disjoint_windows
from filfl.data.federated import FederatedData
from filfl.data.leaf import leaf_files
from filfl.data.roles import Role, leaf_roles, parse_leaf, parse_speeches, speech_roles
from filfl.data.sources import draw_clients, find_source, not_in_test, warn_count
from filfl.errors import DataError

EXPECTED = "LEAF's shakespeare folder (with train/ and test/), or a .jsonl or .jsonl.gz file of speeches"
FILE = "shakespeare_roles.jsonl.gz"
"""The file in the folder FILFL_DATA that is read if data.path is unset."""
FILTERING_TEXT = Path(__file__).with_name("filtering_text.txt")
"""The text of the server's filtering windows if data.text is unset."""


@dataclass(frozen=True, kw_only=True)
class Shakespeare(Dataset):
    """Shakespeare's roles as clients: the input is 80 characters, the class is the next one, of LEAF's 80 characters.

    Read from LEAF's folder (train/ and test/), or from a file of speeches as JSON lines. The windows of a role start at
    every character of its speeches. They overlap, so a validation sample shares text with training samples; a test
    sample of the speeches does not. Characters outside the alphabet are replaced by spaces.
    """

    path: str | None = None
    """LEAF's folder, or a .jsonl or .jsonl.gz of speeches. Unset: shakespeare_roles.jsonl.gz in $FILFL_DATA."""
    clients: Count | None = None
    """The number of roles, drawn with the seed. Only their test samples are used. Unset: all roles."""
    most: Count | None = None
    """The maximum number of training and validation windows per client, the first ones of its text. Its test windows
    are reduced in the same proportion, rounded up. Unset: all windows."""
    min_chars: Count = 2000
    """Speeches only: roles with less text are left out. 1 keeps all roles that have a training window."""
    test: Share = 0.1
    """Speeches only: the last share of a role's text is its test part. LEAF's folder has a test set of its own."""
    validation: Share = 0.2
    """The share of a client's training windows that are validation samples. 0 is none."""
    text: str | None = None
    """A text file from which the server's filtering windows are cut, without overlap. Unset: a text of filfl."""

    def read(self, seed: int) -> FederatedData:
        source = find_source(self.path, FILE, EXPECTED)
        roles = self._from_leaf(source) if source.is_dir() else self._from_speeches(source)
        clients = [role for role in roles if len(role.train)]
        without = [role for role in roles if not len(role.train)]
        if not clients:
            raise DataError(f"{source}: no role has a training window")
        warn_count(source, "users without training data, whose test samples belong to no client", len(without))
        server = read_disjoint_windows(Path(self.text).expanduser() if self.text else FILTERING_TEXT, "data.text")
        if self.clients is not None:
            clients, without = [clients[k] for k in draw_clients(len(clients), self.clients, seed)], []
        kept = [role.at_most(self.most) for role in (*clients, *without)]
        train, owners = _joined([role.train for role in kept])
        test, test_owners = _joined([role.test for role in kept])
        own = not_in_test(train[:, :WINDOW], test[:, :WINDOW], source.name)
        train, owners = train[own], owners[own]
        data = FederatedData.from_arrays(
            # int8 until the batch; uint8 would be treated as pixels.
            train[:, :WINDOW],
            train[:, WINDOW],
            owners,
            test=(test[:, :WINDOW], test[:, WINDOW], test_owners),
            filtering=(server[:, :WINDOW], server[:, WINDOW]),
            validation=self.validation,
            seed=seed,
        )
        return replace(data, classes=len(ALPHABET), names=np.array([kept[k].name for k in np.unique(owners)]))

    def _from_leaf(self, folder: Path) -> list[Role]:
        files = leaf_files(folder)
        return leaf_roles(folder, cached("shakespeare-leaf-1", files, lambda: parse_leaf(files)))

    def _from_speeches(self, path: Path) -> list[Role]:
        arrays = cached("shakespeare-speeches-1", [path], lambda: parse_speeches(path))
        return speech_roles(path, arrays, self.min_chars, self.test)


def _joined(parts: list[Rows]) -> tuple[Rows, np.ndarray[tuple[int], np.dtype[np.int64]]]:
    """The rows of all roles, and the role of each row."""
    return np.concatenate(parts), np.repeat(np.arange(len(parts)), [len(part) for part in parts])
