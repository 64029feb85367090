"""Read a run directory: whatever can be read of it, with a list of what is missing or damaged.

`scan_run` is for reports, which also show runs that were cut off or are still being written. `read_run` raises where
anything is damaged, and `read_finished_run` also where the run is not finished.
"""

import contextlib
import json
import math
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from filfl.availability.base import NO_IDS, Availability, Ids
from filfl.config.plugins import read_plugin
from filfl.errors import ConfigError, RunError
from filfl.runs.client_table import ClientTable
from filfl.runs.store import CLIENTS, CONFIG, RECORDS, SUMMARY, TIMES, read_times


@dataclass(frozen=True)
class Run:
    """What could be read of a run directory."""

    directory: Path
    table: Mapping[str, Any]
    """The content of config.toml; empty if the file is damaged. Its plug-ins do not have to be importable."""
    records: list[dict[str, Any]] = field(default_factory=list)
    times: list[dict[str, float]] = field(default_factory=list)
    clients: ClientTable | None = None
    """None if clients.csv is missing or damaged; never None from `read_run`."""
    summary: Mapping[str, Any] | None = None
    """None as long as the run is not finished."""
    problems: tuple[str, ...] = ()
    """One sentence for each file that is missing or damaged."""

    @property
    def name(self) -> str:
        return str(self.table.get("name", self.directory.name))

    @property
    def seed(self) -> int:
        seed = self.table.get("seed", 0)
        return seed if isinstance(seed, int) else 0

    @property
    def rounds(self) -> int:
        """The number of rounds in the config."""
        rounds = self.table.get("rounds")
        return rounds if isinstance(rounds, int) else len(self.records)

    @property
    def finished(self) -> bool:
        return self.summary is not None and len(self.records) >= self.rounds

    def available(self, record: Mapping[str, Any]) -> Ids | None:
        """S_t of a record; None if the record does not list it and it is not all clients."""
        if record["available"] is not None:
            return np.array(record["available"], dtype=np.int64)
        all_clients = self.clients is not None and record["num_available"] == len(self.clients)
        return np.arange(record["num_available"]) if all_clients else None

    def may_be_chosen(self, record: Mapping[str, Any]) -> Ids:
        """The clients from which A_t was selected; empty if they are unknown. S_t is computed again if the record does
        not list it."""
        if record["filtered"] is not None:
            return np.array(record["filtered"], dtype=np.int64)
        pool = self.available(record)
        if pool is None and self.clients is not None and self.table:
            with contextlib.suppress(ConfigError, KeyError):  # a config that is not valid
                availability: Availability = read_plugin("availability", self.table["availability"])
                pool = availability(record["round"], len(self.clients), self.seed)
        return NO_IDS if pool is None else pool


def is_run(directory: Path) -> bool:
    return (directory / CONFIG).is_file()


def signature(directory: Path) -> tuple[tuple[int, int], ...]:
    """Size and modification time of each file of a run: as long as they are equal, the run has not changed."""
    return tuple(_file_signature(directory / name) for name in (CONFIG, CLIENTS, RECORDS, TIMES, SUMMARY))


def read_finished_run(directory: Path) -> Run:
    """Read a run that must be finished and undamaged."""
    run = read_run(directory)
    if not run.finished:
        done = f"{len(run.records)} of {run.rounds} rounds"
        raise RunError(f"{directory} is not finished ({done}); run again with --resume to continue it")
    return run


def read_run(directory: Path) -> Run:
    """Read a run that must be undamaged; it may be unfinished."""
    run = scan_run(directory)
    if not is_run(directory):
        raise RunError(f"{directory} is not a run directory: it has no {CONFIG}")
    if run.problems:
        raise RunError(f"{directory}: {run.problems[0]}; run again with --resume to repair it")
    return run


def scan_run(directory: Path) -> Run:
    """Read a run directory that may be cut off, damaged, or still being written."""
    problems: list[str] = []
    table = _config(directory / CONFIG, problems)
    records = _records(directory / RECORDS, problems)
    clients = None
    try:
        clients = ClientTable.read(directory / CLIENTS)
    except RunError:
        state = "damaged" if (directory / CLIENTS).exists() else "missing"
        problems.append(f"{CLIENTS} is {state} (client names, sizes and faults are unknown)")
    try:
        times = read_times(directory / TIMES)
    except OSError as error:
        times = []
        problems.append(f"{TIMES} cannot be read: {error.strerror}")
    times = [line for line in times if all(isinstance(value, int | float) for value in line.values())]
    return Run(directory, table, records, times, clients, _summary(directory / SUMMARY), tuple(problems))


def _file_signature(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError:
        return (0, 0)
    return (found.st_size, found.st_mtime_ns)


def _config(path: Path, problems: list[str]) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        problems.append(f"{path.name} cannot be read: {error.strerror}")
    except ValueError:
        problems.append(f"{path.name} is damaged (the settings are unknown)")
    return {}


def _summary(path: Path) -> dict[str, Any] | None:
    try:
        summary = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return summary if isinstance(summary, dict) else None


def _records(path: Path, problems: list[str]) -> list[dict[str, Any]]:
    """The records before the first damaged one. A last line without a newline is still being written."""
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
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        if not is_record(record) or record["round"] != len(records) + 1:
            problems.append(f"{path.name} is damaged after round {len(records)} (later rounds are left out)")
            break
        records.append(record)
    return records


def is_record(value: Any) -> bool:
    """Whether a JSON value has all the fields that a report reads, with values of the right type."""
    return isinstance(value, dict) and all(key in value and valid(value[key]) for key, valid in FIELDS.items())


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and math.isfinite(value))


def _is_ids(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_count, value))


def _is_optional_ids(value: Any) -> bool:
    return value is None or _is_ids(value)


def _is_refused(value: Any) -> bool:
    return isinstance(value, dict) and all(key.isdecimal() for key in value)


def _is_trace(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(step, dict) and _is_step(step) for step in value)


def _is_step(step: dict[str, Any]) -> bool:
    numbers = all(key in step and _is_number(step[key]) for key in ("a", "b", "p"))
    return numbers and _is_count(step.get("client")) and isinstance(step.get("kept"), bool)


FIELDS: dict[str, Callable[[Any], bool]] = {
    "round": _is_count,
    "did_filter": lambda value: isinstance(value, bool),
    "available": _is_optional_ids,
    "num_available": _is_count,
    "considered": _is_ids,
    "filtered": _is_optional_ids,
    "num_filtered": _is_count,
    "selected": _is_ids,
    "refused": _is_refused,
    "train_loss": _is_number,
    "test_accuracy": _is_number,
    "test_loss": _is_number,
    "metrics": lambda value: isinstance(value, dict),
    "uplink_bytes": _is_count,
    "reward_all": _is_number,
    "reward_filtered": _is_number,
    "trace": _is_trace,
}
"""The fields of a record that reports read, and how each is checked."""
