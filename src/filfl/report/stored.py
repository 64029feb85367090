"""A run directory as it is, whole or not: for a report that shows what is there and says what is not."""

import json
import math
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filfl.errors import RunError
from filfl.runs.registered import Registered
from filfl.runs.store import CLIENTS, CONFIG, RECORDS, SUMMARY, TIMES, read_times


@dataclass(frozen=True)
class StoredRun:
    """What could be read of a run, and what could not."""

    directory: Path
    table: Mapping[str, Any]
    """config.toml as it stands: a run of another version may have keys that this one does not know."""
    records: list[dict[str, Any]] = field(default_factory=list)
    times: list[dict[str, float]] = field(default_factory=list)
    clients: Registered | None = None
    summary: Mapping[str, Any] | None = None
    problems: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return str(self.table.get("name", self.directory.name))

    @property
    def seed(self) -> int:
        seed = self.table.get("seed", 0)
        return seed if isinstance(seed, int) else 0

    @property
    def rounds(self) -> int:
        """How many rounds the run is meant to have."""
        rounds = self.table.get("rounds")
        return rounds if isinstance(rounds, int) else len(self.records)

    @property
    def finished(self) -> bool:
        return self.summary is not None and len(self.records) >= self.rounds


def is_run(directory: Path) -> bool:
    return (directory / CONFIG).is_file()


def signature(directory: Path) -> tuple[tuple[int, int], ...]:
    """Sizes and times of change of a run's files: equal signatures, equal runs."""
    return tuple(map(file_signature, (directory / name for name in (CONFIG, CLIENTS, RECORDS, TIMES, SUMMARY))))


def file_signature(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError:
        return (0, 0)
    return (found.st_size, found.st_mtime_ns)


def read_stored(directory: Path) -> StoredRun:
    """Read a run directory, also one that is being written, was cut off, or is of another version."""
    problems: list[str] = []
    table = _table(directory / CONFIG, problems)
    records = _records(directory / RECORDS, problems)
    clients = None
    try:
        clients = Registered.read(directory / CLIENTS)
    except RunError:
        problems.append(f"{CLIENTS} is missing, damaged or of another version: sizes and noise flags are not known")
    try:
        times = read_times(directory / TIMES)
    except OSError as error:
        times = []
        problems.append(f"{TIMES} cannot be read: {error.strerror}")
    times = [line for line in times if all(isinstance(value, int | float) for value in line.values())]
    return StoredRun(directory, table, records, times, clients, _summary(directory / SUMMARY), tuple(problems))


def _table(path: Path, problems: list[str]) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        problems.append(f"{path.name} cannot be read: {error.strerror}")
    except ValueError:
        problems.append(f"{path.name} is damaged: the configuration is not known")
    return {}


def _summary(path: Path) -> dict[str, Any] | None:
    try:
        summary = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return summary if isinstance(summary, dict) else None


def _records(path: Path, problems: list[str]) -> list[dict[str, Any]]:
    """The records up to the first that cannot be read. A last line without an end is still being written."""
    try:
        lines = path.read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        return []
    except OSError as error:
        problems.append(f"{path.name} cannot be read: {error.strerror}")
        return []
    records: list[dict[str, Any]] = []
    for line in lines:
        try:
            records.append(normal(json.loads(line)))
        except (ValueError, KeyError, TypeError, RecursionError):
            problems.append(f"{path.name} is damaged after round {len(records)}: what follows is left out")
            break
    return records


def normal(record: Mapping[str, Any]) -> dict[str, Any]:
    """The parts of a record that a report needs; what another version does not write has its plain value."""
    made = {key: read(record[key]) if key in record else plain() for key, (read, plain) in PARTS.items()}
    available, filtered = made["available"], made["filtered"]
    if made["num_available"] is None:
        made["num_available"] = len(available or ())
    if made["num_filtered"] is None:
        made["num_filtered"] = made["num_available"] if filtered is None else len(filtered)
    return {**made, "round": _whole(record["round"])}


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError("not a whole number")
    return value


def _number(value: Any) -> float | None:
    if value is None:
        return None
    number = float(value)
    return number if math.isfinite(number) else None


def _ids(value: Any) -> list[int]:
    ids = [_whole(k) for k in value]
    if ids and min(ids) < 0:
        raise ValueError("a client's number is not negative")
    return ids


def _ids_or_none(value: Any) -> list[int] | None:
    return None if value is None else _ids(value)


def _refused(value: Any) -> dict[int, str]:
    return {int(k): str(reason) for k, reason in value.items()}


def _metrics(value: Any) -> dict[str, float | None]:
    return {str(name): _number(number) for name, number in value.items() if isinstance(number, int | float)}


def _trace(value: Any) -> list[tuple[int, float | None, float | None, float | None, bool]]:
    return [
        (_whole(step["client"]), _number(step["a"]), _number(step["b"]), _number(step["p"]), bool(step["kept"]))
        for step in value
    ]


def _nothing() -> None:
    return None


PARTS: dict[str, tuple[Callable[[Any], Any], Callable[[], Any]]] = {
    "did_filter": (bool, bool),
    "available": (_ids_or_none, _nothing),
    "num_available": (_whole, _nothing),
    "considered": (_ids, list),
    "filtered": (_ids_or_none, _nothing),
    "num_filtered": (_whole, _nothing),
    "selected": (_ids, list),
    "refused": (_refused, dict),
    "train_loss": (_number, _nothing),
    "test_accuracy": (_number, _nothing),
    "test_loss": (_number, _nothing),
    "metrics": (_metrics, dict),
    "uplink_bytes": (_whole, int),
    "reward_all": (_number, _nothing),
    "reward_filtered": (_number, _nothing),
    "trace": (_trace, list),
}
"""How each part of a record is read, and what it is where it is missing."""
