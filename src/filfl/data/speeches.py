"""Plays as JSON lines: one speech a line, `{"play": ..., "role": ..., "n": ..., "text": ...}`, optionally gzipped."""

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path

from filfl.errors import DataError


def read_speeches(path: Path) -> dict[tuple[str, str], str]:
    """The text of every (play, role), in the order of the file: its speeches, joined by newlines."""
    speeches: dict[tuple[str, str], list[str]] = {}
    for number, line in _lines(path):
        try:
            speech = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}, line {number} is not JSON: {error}") from None
        values = [speech.get(key) for key in ("play", "role", "text")] if isinstance(speech, dict) else []
        texts = [value for value in values if isinstance(value, str)]
        if len(texts) != 3:
            raise DataError(f"{path}, line {number} is no speech: it must have play, role and text, each a text")
        play, role, text = texts
        speeches.setdefault((play, role), []).append(text)
    if not speeches:
        raise DataError(f"{path} has no speeches: give data.path a file with one JSON a line, or LEAF's folder")
    return {who: "\n".join(said) for who, said in speeches.items()}


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield number, line
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path} is damaged or cut off ({error}): copy it again") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None
