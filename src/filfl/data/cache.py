"""Parsed data, kept in the user's cache folder, so that a second start is fast.

A cache file stands under a hash of its sources (path, size and time of change of each file) and of the parser's
version. One that is damaged, or cannot be written, costs time and nothing else. `FILFL_CACHE` moves the folder.
"""

import hashlib
import os
import sys
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[np.generic]]


def cache_folder() -> Path:
    """Where parsed data is kept on this system."""
    if given := os.environ.get("FILFL_CACHE"):
        return Path(given)
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home())) / "filfl" / "cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "filfl"


def cached(parser: str, sources: Sequence[Path], parse: Callable[[], Arrays]) -> Arrays:
    """What `parse` makes of the sources: read from the cache, or made and put there. `parser` names its version."""
    path = cache_folder() / f"{parser}-{_fingerprint(sources)}.npz"
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        pass  # not there, or damaged: made anew
    arrays = parse()
    temporary = path.with_name(f".{path.name}.{os.getpid()}.filfl-tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            np.savez(file, **cast(dict[str, Any], arrays))
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
    return arrays


def _fingerprint(sources: Sequence[Path]) -> str:
    facts = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in sources]
    return hashlib.blake2b(repr(facts).encode(), digest_size=12).hexdigest()
