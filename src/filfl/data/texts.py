"""Texts of any length as rows of tokens, by a user's tokenizer."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from filfl.errors import DataError

Tokenizer = Callable[[str], Sequence[int]]
LARGEST = np.iinfo(np.int32).max


def tokenize(texts: Any, tokenizer: Tokenizer, length: int) -> NDArray[np.int32]:
    """Tokens of texts: [n, length]. Long texts are cut at the end; short ones are filled with 0 at the start, so that a
    recurrent network, which predicts from the last step, sees their last token there."""
    if not isinstance(length, int) or isinstance(length, bool) or length < 1:
        raise DataError(f"length must be a whole number of at least 1 (got {length!r})")
    rows = list(texts)
    x = np.zeros((len(rows), length), dtype=np.int32)
    for i, text in enumerate(rows):
        if not isinstance(text, str):
            raise DataError(f"text {i} must be a text (got {type(text).__name__})")
        tokens = np.asarray(tokenizer(text))
        if tokens.size == 0:
            continue
        if tokens.ndim != 1 or tokens.dtype.kind not in "iu" or tokens.min() < 0 or tokens.max() > LARGEST:
            raise DataError(f"the tokenizer must return a list of whole numbers of at least 0 (got {_short(tokens)})")
        tokens = tokens[:length]
        x[i, length - len(tokens) :] = tokens
    return x


def _short(tokens: NDArray[Any]) -> str:
    text = str(tokens.tolist())
    return text if len(text) <= 60 else f"{text[:57]}..."
