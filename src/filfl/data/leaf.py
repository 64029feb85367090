"""Reads the files of LEAF's scripts: `train/*.json` and `test/*.json` with `users` and `user_data`.

Caldas et al.: LEAF: A Benchmark for Federated Settings. 2018.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filfl.errors import DataError


@dataclass(frozen=True)
class LeafUser:
    """The samples of one user in one file."""

    file: Path
    split: str
    name: str
    x: list[Any]
    y: list[Any]


def leaf_files(folder: Path) -> list[Path]:
    """The JSON files of a LEAF folder, at least one per split."""
    files = []
    for split in ("train", "test"):
        found = sorted((folder / split).glob("*.json"))
        if not found:
            raise DataError(f"{folder / split} has no .json file; LEAF's scripts write train/*.json and test/*.json")
        files += found
    return files


def read_leaf(files: list[Path]) -> Iterator[LeafUser]:
    """The users of LEAF's files, in order. Only one file is in memory at a time."""
    for file in files:
        content = _content(file)
        users, data, counts = [content.get(key, []) for key in ("users", "user_data", "num_samples")]
        named = isinstance(users, list) and all(isinstance(name, str) for name in users)
        if not named or not isinstance(data, dict) or not all(isinstance(user, dict) for user in data.values()):
            raise DataError(f"{file} is not a LEAF file: users must be a list of names, and user_data a table of users")
        if len(set(users)) != len(users) or set(users) != set(data):
            raise DataError(f"{file} is not a LEAF file: users must name each user of user_data exactly once")
        pairs = [(name, data[name].get("x"), data[name].get("y")) for name in users]
        for name, x, y in pairs:
            if not isinstance(x, list) or not isinstance(y, list) or len(x) != len(y):
                raise DataError(f"{file}: x and y of user {name} must be lists of the same length")
        if "num_samples" in content and counts != [len(y) for _, _, y in pairs]:
            raise DataError(f"{file}: num_samples does not match user_data; the file may be truncated, create it again")
        for name, x, y in pairs:
            yield LeafUser(file, file.parent.name, name, x, y)


def _content(file: Path) -> dict[str, Any]:
    """The object in a JSON file."""
    try:
        content = json.loads(file.read_bytes())
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{file} is not valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise DataError(f"{file} is not a LEAF file: it must be a JSON object (got {type(content).__name__})")
    return content
