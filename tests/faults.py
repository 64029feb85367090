"""Faults of the disk, for tests: every open, write, fsync, rename and removal in a folder can fail, or be the last one.

    with Faults(folder) as faults:                       # counts the operations
        simulate(...)
    with Faults(folder, at=17, kind="death") as faults:  # the process dies at the 18th
        simulate(...)

A death is a `Death`, which is not an `Exception`. After it, nothing reaches the disk any more, because a killed process
does not run its `finally` blocks. What was written before it is there, without a flush.
"""

import errno
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

Kind = Literal["death", "torn", "full", "denied"]
"""death: before the operation. torn: after half of a write. full: no space left. denied: no permission."""
ERRORS = {"full": errno.ENOSPC, "denied": errno.EACCES}


class Death(BaseException):
    """The end of the process."""


class Faults:
    """The operations in a folder, of which one can fail. The lock file is not among them, and fsync is only counted."""

    def __init__(self, folder: Path, at: int | None = None, kind: Kind = "death") -> None:
        self.folder, self.at, self.kind = folder.resolve(), at, kind
        self.operations: list[tuple[str, str]] = []
        """(what, name of the file) so far."""
        self.dead = False
        self._real: dict[tuple[Any, str], Any] = {}

    def __enter__(self) -> "Faults":
        self._patch(io, "open", self._open)
        self._patch(os, "fsync", lambda real, handle: self._run("fsync", self._path_of(handle), lambda: None))
        for name in ("replace", "rename"):
            self._patch(os, name, lambda real, a, b: self._run("rename", b, lambda: real(a, b)))
        for name in ("unlink", "mkdir"):
            self._patch(
                os, name, lambda real, path, *rest, _n=name, **k: self._run(_n, path, lambda: real(path, *rest, **k))
            )
        return self

    def __exit__(self, *_: object) -> None:
        for (module, name), real in self._real.items():
            setattr(module, name, real)

    def _patch(self, module: Any, name: str, replacement: Callable[..., Any]) -> None:
        real = self._real[module, name] = getattr(module, name)
        setattr(module, name, lambda *args, **options: replacement(real, *args, **options))

    def _path_of(self, handle: int) -> Path:
        return Path(f"/proc/self/fd/{handle}").readlink()

    def _is_inside(self, path: Any) -> bool:
        if isinstance(path, int):
            return False
        path = Path(path).absolute()
        aside = path.parent == self.folder.parent and path.name.startswith(f"{self.folder.name}.")
        return (aside or path.is_relative_to(self.folder)) and path.name != ".lock"

    def _run(self, what: str, path: Any, real: Callable[[], Any], torn: Callable[[], Any] = lambda: None) -> Any:
        """One operation: done, failed, or the last one."""
        if not self._is_inside(path):
            return real()
        if self.dead:
            raise Death
        self.operations.append((what, Path(path).name))
        if len(self.operations) - 1 != self.at:
            return real()
        if self.kind in ERRORS:
            if self.kind == "full":
                torn()
            raise OSError(ERRORS[self.kind], os.strerror(ERRORS[self.kind]))
        self.dead = True
        if self.kind == "torn":
            torn()
        raise Death

    def _open(self, real: Any, path: Any, mode: str = "r", *args: Any, **options: Any) -> Any:
        if not self._is_inside(path) or mode not in ("wb", "ab"):
            return real(path, mode, *args, **options)
        return self._run("open", path, lambda: _File(self, path, real(path, mode, buffering=0)))


class _File:
    """A file without a buffer: what is written is on the disk, and a death does not flush anything."""

    def __init__(self, faults: Faults, path: Any, raw: Any) -> None:
        self._faults, self._path, self._raw = faults, path, raw

    def write(self, data: bytes) -> int:
        half = data[: len(data) // 2]
        self._faults._run("write", self._path, lambda: self._raw.write(data), lambda: self._raw.write(half))
        return len(data)

    def writelines(self, pieces: Any) -> None:
        for piece in pieces:
            self.write(piece)

    def flush(self) -> None:
        """Nothing is buffered."""

    def fileno(self) -> int:
        return self._raw.fileno()

    def __enter__(self) -> "_File":
        return self

    def __exit__(self, *_: object) -> None:
        self._raw.close()
