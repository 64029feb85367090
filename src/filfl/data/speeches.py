"""Reads plays as JSON lines: one speech per line, `{"play": ..., "role": ..., "n": ..., "text": ...}`, or gzipped."""

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path

from filfl.errors import DataError


def read_speeches(path: Path) -> dict[tuple[str, str], str]:
    """The text of every (play, role) in the order of the file: its speeches, joined by newlines."""
    speeches: dict[tuple[str, str], list[str]] = {}
    for number, line in _lines(path):
        try:
            speech = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}, line {number} is not valid JSON: {error}") from None
        values = [speech.get(key) for key in ("play", "role", "text")] if isinstance(speech, dict) else []
        texts = [value for value in values if isinstance(value, str)]
        if len(texts) != 3:
            raise DataError(f"{path}, line {number} is not a speech: play, role and text must be strings")
        play, role, text = texts
        speeches.setdefault((play, role), []).append(text)
    if not speeches:
        raise DataError(f"{path} has no speeches; set data.path to a file of JSON lines, or to LEAF's folder")
    return {key: "\n".join(texts) for key, texts in speeches.items()}


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield number, line
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path} is damaged or truncated ({error}); copy it again") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None
