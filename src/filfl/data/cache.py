"""A cache of parsed data in the user's cache folder, so that later starts are fast.

The name of a cache file has a hash of its sources (path, size and modification time of each file) and the version of
the parser. A damaged cache file is written again, and a folder that is not writable is ignored. The environment
variable `FILFL_CACHE` selects another folder.
"""

import hashlib
import os
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import platformdirs
from numpy.typing import NDArray

Arrays = dict[str, NDArray[np.generic]]


def cache_folder() -> Path:
    """The folder of `FILFL_CACHE`, or this system's cache folder for filfl."""
    given = os.environ.get("FILFL_CACHE")
    return Path(given) if given else platformdirs.user_cache_path("filfl", appauthor=False)


def cached(parser: str, sources: Sequence[Path], parse: Callable[[], Arrays]) -> Arrays:
    """Return `parse()`, from the cache where possible. `parser` is the name and version of the parser."""
    path = cache_folder() / f"{parser}-{_fingerprint(sources)}.npz"
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        pass  # missing or damaged: parse the sources
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
    statuses = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in sources]
    return hashlib.blake2b(repr(statuses).encode(), digest_size=12).hexdigest()
