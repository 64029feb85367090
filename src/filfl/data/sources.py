"""What the readers of datasets share: finding, reading and caching files, drawing clients, and warnings."""

import hashlib
import logging
import os
import stat
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import numpy as np
import platformdirs
from numpy.typing import NDArray

from filfl.data.npz import open_npz
from filfl.errors import LONGEST, DataError
from filfl.rng import SETUP, stream

log = logging.getLogger("filfl")

Arrays = dict[str, NDArray[Any]]


FOLDER = "FILFL_DATA"
"""The environment variable with the folder of all datasets."""


def find_source(path: str | None, names: Sequence[str], expected: str) -> Path:
    """The source of a dataset: `data.path`, or the first of `names` that exists in the folder FILFL_DATA."""
    if path is not None:
        source = user_path(path)
        if not _exists(source):
            raise DataError(f"data.path: {source} does not exist; set it to {expected}")
        if not (source.is_file() or source.is_dir()):  # reading a pipe or a device can wait, or never end
            raise DataError(f"data.path: {source} is neither a file nor a folder; set it to {expected}")
        return source
    folder = os.environ.get(FOLDER)
    for name in names if folder else ():
        if _exists(source := user_path(folder or "") / name):
            return source
    problem = f"data.path is not set; set it to {expected}"
    if names:
        found = f"{folder} has none of them" if folder else "not set now"
        problem += f", or set the environment variable {FOLDER} ({found}) to a folder that has {' or '.join(names)}; "
        problem += "docs/datasets.md describes how to obtain the data"
    raise DataError(problem)


def user_path(path: str | Path) -> Path:
    """A path that a user wrote, with ~ as the home folder."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:  # ~name, where there is no such user
        raise DataError(f"{path} cannot be found: {error}") from None


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError as error:  # a name that is too long, or a folder that is not readable
        raise DataError(f"data.path: {str(path)[:LONGEST]} cannot be read: {error.strerror}") from None


def read_npz(path: Path, names: Sequence[str], optional: Sequence[str] = (), key: str = "") -> Arrays:
    """Arrays of an .npz file, without unpickling. `key` is the option that names the file, for the errors."""
    where = f"{key}: {path}" if key else str(path)
    with open_npz(path, where) as stored:
        if missing := [name for name in names if name not in stored.names]:
            raise DataError(f"{where} has no array {missing[0]}; it must have {', '.join(names)}")
        return stored.read([name for name in (*names, *optional) if name in stored.names])


def cache_folder() -> Path:
    """The folder of the environment variable FILFL_CACHE, or this system's cache folder for filfl."""
    given = os.environ.get("FILFL_CACHE")
    return Path(given) if given else platformdirs.user_cache_path("filfl", appauthor=False)


MARK = "filfl-cache"
"""The array of a cache file with the name of its parser: a file without it is not a cache."""


def cached(parser: str, sources: Sequence[Path], parse: Callable[[], Arrays]) -> Arrays:
    """Return `parse()`, from the cache where possible, so that later starts are fast.

    The name of a cache file has the name and version of the parser, and a hash of the path, size and modification time
    of each source. A damaged cache file is written again, and a folder that is not writable is ignored.
    """
    path = cache_folder() / f"{parser}-{_fingerprint(sources)}.npz"
    try:
        with open_npz(path, str(path)) as stored:
            arrays = stored.read(stored.names)
        if arrays.pop(MARK).item() == parser:
            return arrays
    except (DataError, KeyError, ValueError):
        pass  # missing, damaged, or not a cache: parse the sources
    arrays = parse()
    temporary = path.with_name(f".{path.name}.{os.getpid()}.filfl-tmp")
    with suppress(OSError):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with temporary.open("wb") as file:
                np.savez(file, **cast(Any, {**arrays, MARK: np.array(parser)}))
            temporary.replace(path)
        except OSError:
            temporary.unlink(missing_ok=True)
    return arrays


def _fingerprint(sources: Sequence[Path]) -> str:
    statuses = []
    for path in sources:
        try:
            status = path.stat()
            if not stat.S_ISREG(status.st_mode):  # reading a pipe or a device can wait, or never end
                raise DataError(f"{path} is not a regular file")
            statuses.append((str(path.resolve()), status.st_size, status.st_mtime_ns))
        except (OSError, RuntimeError) as error:  # a link to itself is a RuntimeError
            reason = error.strerror if isinstance(error, OSError) else error
            raise DataError(f"{path} cannot be read: {reason}") from None
    return hashlib.blake2b(repr(statuses).encode(errors="surrogateescape"), digest_size=12).hexdigest()


def warn_count(source: object, what: str, count: int) -> None:
    """Log how many items of a source were dropped or changed, if any."""
    if count:
        log.warning("%s: %s: %d", source, what, count)


def draw_clients(total: int, wanted: int | None, seed: int) -> NDArray[np.int64]:
    """The source's clients that take part, in ascending order: all, or `wanted` of them drawn with the seed."""
    if wanted is None:
        return np.arange(total)
    if wanted > total:
        raise DataError(f"data.clients must be between 1 and the {total} clients of the source (got {wanted})")
    return np.sort(stream(seed, SETUP, "clients").permutation(total)[:wanted])


def not_in_test(x: NDArray[Any], test_x: NDArray[Any], source: str) -> NDArray[np.bool_]:
    """A mask of the training samples that are not copies of a test sample. Warns about the copies."""
    tests = {row.tobytes() for row in test_x}
    kept = np.fromiter((row.tobytes() not in tests for row in x), dtype=bool, count=len(x))
    warn_count(source, "training samples that are also test samples, dropped", int((~kept).sum()))
    return kept
