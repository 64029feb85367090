"""Shakespeare's roles as clients: the input is 80 characters as numbers, the label is the next character.

Caldas et al.: LEAF: A Benchmark for Federated Settings. 2018.
"""

import gzip
import json
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from filfl.config.schema import Count, Share
from filfl.data.base import Dataset
from filfl.data.federated import FederatedData
from filfl.data.leaf import LeafUser, leaf_files, read_leaf
from filfl.data.limits import refuse_compressed_bomb
from filfl.data.samples import client_numbers
from filfl.data.sources import Arrays, cached, draw_clients, find_source, not_in_test, user_path, warn_count
from filfl.data.split import floored
from filfl.errors import DataError

EXPECTED = "LEAF's shakespeare folder (with train/ and test/), or a .jsonl or .jsonl.gz file of speeches"
NAMES = ("shakespeare_roles.jsonl.gz", "shakespeare", "leaf/data/shakespeare/data")
"""The files and folders that are looked for in the folder FILFL_DATA, in this order."""
FILTERING_TEXT = Path(__file__).with_name("filtering_text.txt")
"""The text of the server's filtering windows if data.text is unset."""
ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
"""LEAF's 80 characters in its order. The code of a character is its index."""
UNKNOWN = ALPHABET.index(" ")
"""The code of every character outside the alphabet: the space."""
OUTSIDE = "characters outside the alphabet, replaced by spaces"
WINDOW = 80
"""The number of characters of an input. A row of windows has one more, the label."""

Rows = NDArray[np.int8]
"""Windows with their labels: [n, WINDOW + 1]."""

_CODES = np.full(128, -1, dtype=np.int8)
_CODES[[ord(character) for character in ALPHABET]] = np.arange(len(ALPHABET))


@dataclass(frozen=True)
class Role:
    """One client: its windows with their labels, in the order of the text."""

    name: str
    train: Rows
    test: Rows

    def at_most(self, most: int, spread: bool) -> "Role":
        """`most` training windows and the same fraction of the test windows, rounded up: the first ones, or, with
        `spread`, windows at equal distances over the text."""
        num_train = min(most, len(self.train))
        num_test = -(-len(self.test) * num_train // len(self.train)) if num_train else min(most, len(self.test))
        take = _spread if spread else _first
        return replace(self, train=take(self.train, num_train), test=take(self.test, num_test))


@dataclass(frozen=True, kw_only=True)
class Shakespeare(Dataset):
    """Shakespeare's roles as clients: the input is 80 characters, the class is the next one, of LEAF's 80 characters.

    Read from LEAF's folder (train/ and test/), or from a file of speeches as JSON lines. The windows of a role start at
    every character of its speeches. They overlap, so a validation sample shares text with training samples; a test
    sample of the speeches does not. Characters outside the alphabet are replaced by spaces.
    """

    path: str | None = None
    """LEAF's folder, or a .jsonl or .jsonl.gz of speeches. Unset: shakespeare_roles.jsonl.gz, shakespeare or
    leaf/data/shakespeare/data in the folder FILFL_DATA."""
    clients: Count | None = None
    """The number of roles, drawn with the seed. Only their test samples are used. Unset: all roles."""
    most: Count | None = None
    """The maximum number of training and validation windows per client, the first ones of its text. Its test windows
    are reduced in the same proportion, rounded up. Unset: all windows."""
    spread: bool = False
    """Whether the `most` windows start at equal distances over a role's whole text, instead of being its first ones:
    the first 200 windows of speeches are 280 consecutive characters. Without `most` it has no effect."""
    min_chars: Count = 2000
    """Speeches only: roles with less text are left out. 1 keeps all roles that have a training window."""
    test: Share = 0.1
    """Speeches only: the last share of a role's text is its test part. LEAF's folder has a test set of its own."""
    validation: Share = 0.2
    """The share of a client's training windows that are validation samples. 0 is none."""
    text: str | None = None
    """A text file from which the server's filtering windows are cut, without overlap. Unset: a text of filfl."""

    def check_source(self) -> None:
        self._source()

    def _source(self) -> Path:
        return find_source(self.path, NAMES, EXPECTED)

    def read(self, seed: int) -> FederatedData:
        source = self._source()
        roles = self._roles(source)
        clients = [role for role in roles if len(role.train)]
        without = [role for role in roles if not len(role.train)]
        if not clients:
            raise DataError(f"{source}: no role has a training window")
        warn_count(source, "users without training data, whose test samples belong to no client", len(without))
        server = read_text(user_path(self.text) if self.text else FILTERING_TEXT, "data.text")
        if self.clients is not None:
            clients, without = [clients[k] for k in draw_clients(len(clients), self.clients, seed)], []
        kept = [*clients, *without]
        if self.most is not None:
            kept = [role.at_most(self.most, self.spread) for role in kept]
        train, owners = _joined([role.train for role in kept])
        test, test_owners = _joined([role.test for role in kept])
        own = not_in_test(train[:, :WINDOW], test[:, :WINDOW], source.name)
        own_samples, tested = (*_pair(train[own]), owners[own]), (*_pair(test), test_owners)
        names = np.array([role.name for role in kept])
        trusted = client_numbers("data.trusted", self.trusted, names) if self.trusted else None
        data = FederatedData.from_arrays(
            *own_samples, trusted=trusted, test=tested, filtering=server, validation=self.validation, seed=seed
        )
        return replace(data, classes=len(ALPHABET), names=names[np.unique(owners[own])])

    def _roles(self, source: Path) -> list[Role]:
        """The roles of a LEAF folder, of which some may have test windows only, or of a file of speeches."""
        if source.is_dir():
            files = leaf_files(source)
            arrays = cached("shakespeare-leaf-2", files, lambda: parse_leaf(files))
        else:
            arrays = cached("shakespeare-speeches-2", [source], lambda: parse_speeches(source))
        warn_count(source, "roles without text, left out", int(arrays["empty"].item()))
        warn_count(source, OUTSIDE, int(arrays["unknown"].item()))
        names = arrays["names"].tolist()
        parts = np.split(arrays["codes"], np.cumsum(arrays["sizes"]))[:-1]
        if source.is_dir():
            pairs = zip(names, parts[::2], parts[1::2], strict=True)
            return [Role(name, disjoint_windows(train), disjoint_windows(test)) for name, train, test in pairs]
        roles = []
        for name, codes in zip(names, parts, strict=True):
            # The text is split before windows are cut, so that no window has characters of both parts.
            training, testing = np.split(codes, [len(codes) - floored(self.test, len(codes))])
            if len(codes) >= self.min_chars and len(training) > WINDOW:
                roles.append(Role(name, sliding_windows(training), sliding_windows(testing)))
        reason = f"fewer than data.min_chars = {self.min_chars} characters, or too few for a training window"
        if not roles:
            raise DataError(f"{source}: every role has {reason}; lower data.min_chars or data.test")
        warn_count(source, f"roles with {reason}, left out", len(names) - len(roles))
        return roles


def parse_speeches(path: Path) -> Arrays:
    """One part per role: its speeches, joined by newlines.

    A line of the file is one speech: `{"play": ..., "role": ..., "n": ..., "text": ...}`. The file may be gzipped.
    """
    speeches: dict[tuple[str, str], list[str]] = {}
    try:
        refuse_compressed_bomb(path)
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    play, role, text = _speech(line, f"{path}, line {number}")
                    speeches.setdefault((play, role), []).append(text)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path} is damaged or truncated ({error}); copy it again") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None
    if not speeches:
        raise DataError(f"{path} has no speeches; set data.path to a file of JSON lines, or to LEAF's folder")
    spoken = {role: "\n".join(texts) for role, texts in speeches.items() if "".join(texts).strip()}
    if not spoken:
        raise DataError(f"{path}: none of its {len(speeches)} roles has any text")
    codes, unknown = encode("".join(spoken.values()))
    return {
        "names": np.array([f"{play}: {role}" for play, role in spoken]),
        "codes": codes,
        "sizes": np.array([len(text) for text in spoken.values()]),
        "unknown": np.array(unknown),
        "empty": np.array(len(speeches) - len(spoken)),
    }


def _speech(line: bytes, where: str) -> list[Any]:
    """The play, the role and the text of a line."""
    try:
        speech = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where} is not valid JSON: {error}") from None
    values = [speech.get(key) for key in ("play", "role", "text")] if isinstance(speech, dict) else [None]
    if not all(isinstance(value, str) for value in values):
        raise DataError(f"{where} is not a speech: play, role and text must be strings")
    return values


def parse_leaf(files: list[Path]) -> Arrays:
    """Two parts per user of LEAF's files: the characters of its training windows and of its test windows."""
    users: dict[str, dict[str, list[NDArray[np.int8]]]] = {}
    total = 0
    for user in read_leaf(files):
        codes, unknown = _encode_windows(user)
        total += unknown
        users.setdefault(user.name, {"train": [], "test": []})[user.split].append(codes)
    sizes = {name: [sum(map(len, pieces)) for pieces in parts.values()] for name, parts in users.items()}
    names = [name for name in users if any(sizes[name])]
    pieces = [piece for parts in users.values() for pieces in parts.values() for piece in pieces]
    return {
        "names": np.array(names, dtype=np.str_),
        "codes": np.concatenate([np.empty(0, dtype=np.int8), *pieces]),
        "sizes": np.array([sizes[name] for name in names], dtype=np.int64),
        "unknown": np.array(total),
        "empty": np.array(len(users) - len(names)),
    }


def _encode_windows(user: LeafUser) -> tuple[NDArray[np.int8], int]:
    for number, (x, y) in enumerate(zip(user.x, user.y, strict=True)):
        where = f"{user.file}: user {user.name}, sample {number}"
        if not isinstance(x, str) or len(x) != WINDOW:
            found = f"{len(x)} characters" if isinstance(x, str) else type(x).__name__
            raise DataError(f"{where}: x must be a string of {WINDOW} characters (got {found})")
        if not isinstance(y, str) or len(y) != 1:
            raise DataError(f"{where}: y must be a string of one character (got {y!r:.40})")
    return encode("".join(x + y for x, y in zip(user.x, user.y, strict=True)))


def _first(rows: Rows, number: int) -> Rows:
    return rows[:number]


def _spread(rows: Rows, number: int) -> Rows:
    """Rows at equal distances, the first one included."""
    return rows[np.arange(number) * len(rows) // max(number, 1)]


def _joined(parts: list[Rows]) -> tuple[Rows, NDArray[np.int64]]:
    """The rows of all roles, and the role of each row."""
    return np.concatenate(parts), np.repeat(np.arange(len(parts)), [len(part) for part in parts])


def encode(text: str) -> tuple[NDArray[np.int8], int]:
    """The code of every character, and how many characters were outside the alphabet."""
    # UTF-32 has one number per character; surrogatepass, because JSON may hold half of a surrogate pair.
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")
    codes = _CODES[np.minimum(points, 127)]  # 127 is not in the alphabet
    unknown = codes < 0
    return np.where(unknown, np.int8(UNKNOWN), codes), int(unknown.sum())


def encode_or_warn(text: str, source: object) -> NDArray[np.int8]:
    """The code of every character; warns if there are characters outside the alphabet."""
    codes, unknown = encode(text)
    warn_count(source, OUTSIDE, unknown)
    return codes


def sliding_windows(codes: NDArray[np.int8]) -> Rows:
    """All windows of a text, each one character after the previous one. A view, so it takes no memory."""
    if len(codes) <= WINDOW:
        return np.empty((0, WINDOW + 1), dtype=np.int8)
    return sliding_window_view(codes, WINDOW + 1)


def disjoint_windows(codes: NDArray[np.int8]) -> Rows:
    """The windows of a text that do not overlap: each starts after the label of the previous one."""
    return codes[: len(codes) // (WINDOW + 1) * (WINDOW + 1)].reshape(-1, WINDOW + 1)


def read_text(path: Path, key: str) -> tuple[Rows, Rows]:
    """Samples from the disjoint windows of a text file, as in the paper's Table 3. `key` is the option of the file."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise DataError(f"{key}: {path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise DataError(f"{key} must be a text file in UTF-8: {path} ({error})") from None
    if len(text) <= WINDOW:
        raise DataError(f"{key} must have at least {WINDOW + 1} characters: {path} has {len(text)}")
    return _pair(disjoint_windows(encode_or_warn(text, path)))


def _pair(rows: Rows) -> tuple[Rows, Rows]:
    """Inputs and labels. They stay int8 until the batch; uint8 would be treated as pixels."""
    return rows[:, :WINDOW], rows[:, WINDOW]
