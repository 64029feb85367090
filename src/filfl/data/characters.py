"""Text as LEAF's Shakespeare reads it: 80 characters, each as its number, and the one after them as the label.

Caldas et al.: LEAF: A Benchmark for Federated Settings. 2018.
"""

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
"""LEAF's 80 characters, in its order: a character's number is its place in here."""
UNKNOWN = ALPHABET.index(" ")
"""What every other character is taken for: the space."""
WINDOW = 80
"""How many characters a sample has; its label is the one after them, so a row below has one more."""

Rows = NDArray[np.int8]
"""Samples with their labels: [n, WINDOW + 1]."""

_CODES = np.full(128, -1, dtype=np.int8)
_CODES[[ord(character) for character in ALPHABET]] = np.arange(len(ALPHABET))


def encode(text: str) -> tuple[NDArray[np.int8], int]:
    """The number of every character, and how many were not in the alphabet."""
    # One number a character, and no failure on half a surrogate pair, which JSON may hold.
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")
    codes = _CODES[np.minimum(points, 127)]  # 127 is none of the 80
    unknown = codes < 0
    return np.where(unknown, np.int8(UNKNOWN), codes), int(unknown.sum())


def sliding(codes: NDArray[np.int8]) -> Rows:
    """Every window of the text: the next one starts one character later. A view, so that it costs nothing."""
    if len(codes) <= WINDOW:
        return np.empty((0, WINDOW + 1), dtype=np.int8)
    return sliding_window_view(codes, WINDOW + 1)


def apart(codes: NDArray[np.int8]) -> Rows:
    """The windows of the text that share nothing: the next one starts after the label of the one before."""
    count = len(codes) // (WINDOW + 1)
    return codes[: count * (WINDOW + 1)].reshape(count, WINDOW + 1)
