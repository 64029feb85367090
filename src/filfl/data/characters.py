"""Text as in LEAF's Shakespeare: the input is 80 characters as numbers, the label is the next character.

Caldas et al.: LEAF: A Benchmark for Federated Settings. 2018.
"""

from pathlib import Path

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from filfl.data.sources import warn_count
from filfl.errors import DataError

ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
"""LEAF's 80 characters in its order. The code of a character is its index."""
UNKNOWN = ALPHABET.index(" ")
"""The code of every character outside the alphabet: the space."""
WINDOW = 80
"""The number of characters of an input. A row of windows has one more, the label."""

Rows = NDArray[np.int8]
"""Windows with their labels: [n, WINDOW + 1]."""

_CODES = np.full(128, -1, dtype=np.int8)
_CODES[[ord(character) for character in ALPHABET]] = np.arange(len(ALPHABET))


def encode(text: str) -> tuple[NDArray[np.int8], int]:
    """The code of every character, and how many characters were outside the alphabet."""
    # UTF-32 has one number per character; surrogatepass, because JSON may hold half of a surrogate pair.
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")
    codes = _CODES[np.minimum(points, 127)]  # 127 is not in the alphabet
    unknown = codes < 0
    return np.where(unknown, np.int8(UNKNOWN), codes), int(unknown.sum())


def warn_unknown(source: object, count: int) -> None:
    warn_count(source, "characters outside the alphabet, replaced by spaces", count)


def sliding_windows(codes: NDArray[np.int8]) -> Rows:
    """All windows of a text, each one character after the previous one. A view, so it takes no memory."""
    if len(codes) <= WINDOW:
        return np.empty((0, WINDOW + 1), dtype=np.int8)
    return sliding_window_view(codes, WINDOW + 1)


def disjoint_windows(codes: NDArray[np.int8]) -> Rows:
    """The windows of a text that do not overlap: each starts after the label of the previous one."""
    count = len(codes) // (WINDOW + 1)
    return codes[: count * (WINDOW + 1)].reshape(count, WINDOW + 1)


def read_disjoint_windows(path: Path, key: str) -> Rows:
    """The disjoint windows of a text file, as in the paper's Table 3. `key` is the option that names the file."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise DataError(f"{key}: {path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise DataError(f"{key} must be a text file in UTF-8: {path} ({error})") from None
    if len(text) <= WINDOW:
        raise DataError(f"{key} must have at least {WINDOW + 1} characters: {path} has {len(text)}")
    codes, unknown = encode(text)
    warn_unknown(path, unknown)
    return disjoint_windows(codes)
