"""Shakespeare's roles with their windows, from LEAF's files or from a file of speeches.

Parsing returns plain arrays, which are cached. What depends on the options of a config happens after that.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from filfl.data.cache import Arrays
from filfl.data.characters import WINDOW, Rows, encode, sliding_windows, warn_unknown
from filfl.data.federated import floored
from filfl.data.leaf import LeafUser, read_leaf
from filfl.data.sources import warn_count
from filfl.data.speeches import read_speeches
from filfl.errors import DataError


@dataclass(frozen=True)
class Role:
    """One client: its windows with their labels, in the order of the text."""

    name: str
    train: Rows
    test: Rows

    def at_most(self, most: int | None) -> "Role":
        """The first `most` training windows and the same fraction of the test windows, rounded up. None keeps all."""
        if most is None:
            return self
        if not len(self.train):
            return replace(self, test=self.test[:most])
        train = self.train[:most]
        num_test = -(-len(self.test) * len(train) // len(self.train))
        return replace(self, train=train, test=self.test[:num_test])


def parse_speeches(path: Path) -> Arrays:
    """The encoded texts of all roles, concatenated, and the offset of each."""
    speeches = read_speeches(path)
    # A role of empty speeches has only the newlines between them.
    spoken = [(f"{play}: {role}", text) for (play, role), text in speeches.items() if text.strip()]
    if not spoken:
        raise DataError(f"{path}: none of its {len(speeches)} roles has any text")
    codes, unknown = encode("".join(text for _, text in spoken))
    return {
        "codes": codes,
        "offsets": _offsets([len(text) for _, text in spoken]),
        "names": np.array([name for name, _ in spoken]),
        "unknown": np.array(unknown),
        "empty": np.array(len(speeches) - len(spoken)),
    }


def speech_roles(path: Path, arrays: Arrays, min_chars: int, test: float) -> list[Role]:
    """The roles with enough text. The last share `test` of a role's text is its test part."""
    _warn(path, arrays)
    roles = []
    texts = _split(arrays, "codes", "offsets")
    for name, codes in zip(arrays["names"].tolist(), texts, strict=True):
        # The text is split before windows are cut, so that no window has characters of both parts.
        training, testing = np.split(codes, [len(codes) - floored(test, len(codes))])
        if len(codes) >= min_chars and len(training) > WINDOW:
            roles.append(Role(name, sliding_windows(training), sliding_windows(testing)))
    reason = f"fewer than data.min_chars = {min_chars} characters, or too few for a training window"
    if not roles:
        raise DataError(f"{path}: every role has {reason}; lower data.min_chars or data.test")
    warn_count(path, f"roles with {reason}, left out", len(texts) - len(roles))
    return roles


def parse_leaf(files: Sequence[Path]) -> Arrays:
    """The training and test windows of every user in LEAF's files, in the order of the files."""
    users: dict[str, dict[str, list[Rows]]] = {}
    total = 0
    for user in read_leaf(list(files)):
        rows, unknown = _rows(user)
        total += unknown
        users.setdefault(user.name, {"train": [], "test": []})[user.split].append(rows)
    none = np.empty((0, WINDOW + 1), dtype=np.int8)
    arrays: Arrays = {"names": np.array(list(users), dtype=np.str_), "unknown": np.array(total)}
    for split in ("train", "test"):
        parts = [np.concatenate([none, *user[split]]) for user in users.values()]
        arrays[split] = np.concatenate([none, *parts])
        arrays[f"{split}_offsets"] = _offsets([len(part) for part in parts])
    sizes = np.diff(arrays["train_offsets"]) + np.diff(arrays["test_offsets"])
    arrays["empty"] = np.array(int((sizes == 0).sum()))
    return arrays


def leaf_roles(folder: Path, arrays: Arrays) -> list[Role]:
    """The users that have any window. Some may have test windows only."""
    _warn(folder, arrays)
    parts = [_split(arrays, split, f"{split}_offsets") for split in ("train", "test")]
    roles = [Role(*fields) for fields in zip(arrays["names"].tolist(), *parts, strict=True)]
    return [role for role in roles if len(role.train) or len(role.test)]


def _rows(user: LeafUser) -> tuple[Rows, int]:
    for number, (x, y) in enumerate(zip(user.x, user.y, strict=True)):
        where = f"{user.file}: user {user.name}, sample {number}"
        if not isinstance(x, str) or len(x) != WINDOW:
            found = f"{len(x)} characters" if isinstance(x, str) else type(x).__name__
            raise DataError(f"{where}: x must be a string of {WINDOW} characters (got {found})")
        if not isinstance(y, str) or len(y) != 1:
            raise DataError(f"{where}: y must be a string of one character (got {y!r:.40})")
    codes, unknown = encode("".join(x + y for x, y in zip(user.x, user.y, strict=True)))
    return codes.reshape(-1, WINDOW + 1), unknown


def _warn(source: Path, arrays: Arrays) -> None:
    warn_count(source, "roles without text, left out", int(arrays["empty"].item()))
    warn_unknown(source, int(arrays["unknown"].item()))


def _offsets(sizes: Sequence[int]) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def _split(arrays: Arrays, name: str, offsets: str) -> list[NDArray[np.int8]]:
    ends = np.asarray(arrays[offsets], dtype=np.int64)
    return [np.asarray(arrays[name], dtype=np.int8)[start:stop] for start, stop in pairwise(ends)]
