"""Read a run directory: whatever can be read of it, with a list of what is missing or damaged.

`scan_run` is for reports, which also show runs that were cut off or are still being written. `read_run` raises where
anything is damaged, and `read_finished_run` also where the run is not finished. A file of a finished run that does not
have its hash any more is damaged, whatever it contains.
"""

import contextlib
import json
import re
import sys
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from filfl.availability.base import NO_IDS, Availability, Ids
from filfl.config.plugins import read_plugin
from filfl.errors import RunError, one_line
from filfl.runs.client_table import ClientTable
from filfl.runs.files import regular
from filfl.runs.seal import CLIENTS, CONFIG, RECORDS, SUMMARY, TIMES, parse_summary, unchanged
from filfl.runs.store import content, parse_times
from filfl.runs.summary import differences


@dataclass(frozen=True, eq=False)
class Run:
    """What could be read of a run directory. Two readings of it are two different runs."""

    directory: Path
    table: Mapping[str, Any]
    """The content of config.toml; empty if the file is damaged. Its plug-ins do not have to be importable."""
    records: list[dict[str, Any]] = field(default_factory=list)
    times: dict[int, dict[str, float]] = field(default_factory=dict)
    """The seconds per phase, by round."""
    clients: ClientTable | None = None
    """None if clients.csv is missing or damaged; never None from `read_run`."""
    summary: Mapping[str, Any] | None = None
    """None as long as the run is not finished, and if summary.json was changed. Its totals are those of the records."""
    problems: tuple[str, ...] = ()
    """One sentence for each file that is missing or damaged."""

    @property
    def name(self) -> str:
        return str(self.table.get("name", self.directory.name))

    def name_of(self, client: int) -> str:
        """The name of a client, or its number."""
        known = self.clients is not None and 0 <= client < len(self.clients)
        return str(self.clients.names[client]) if self.clients is not None and known else str(client)

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
        return self.summary is not None and (len(self.records) >= self.rounds or self.stopped is not None)

    @property
    def stopped(self) -> str | None:
        """Why a callback ended the run before its last round; None if it did not."""
        stopped = self.summary.get("stopped") if self.summary else None
        return stopped if isinstance(stopped, str) and len(self.records) < self.rounds else None

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
            with contextlib.suppress(Exception):  # a config that is not valid
                availability: Availability = read_plugin("availability", self.table["availability"])
                pool = availability(record["round"], len(self.clients), self.seed)
        return NO_IDS if pool is None else pool


def is_run(directory: Path) -> bool:
    return (directory / CONFIG).is_file()


def require_run(directory: Path) -> None:
    """Raise if this is not a run directory."""
    if not is_run(directory):
        runs = sorted([*directory.glob(f"*/{CONFIG}"), *directory.glob(f"*/*/{CONFIG}")])
        hint = f"; did you mean {runs[0].parent}?" if runs else "; give the directory that was `out` of the run"
        raise RunError(f"{directory} is not a run directory: it has no {CONFIG}{hint}")


def signature(directory: Path) -> tuple[tuple[int, int], ...]:
    """Size and modification time of each file of a run: as long as they are equal, the run has not changed."""
    signatures = []
    for name in (CONFIG, CLIENTS, RECORDS, TIMES, SUMMARY):
        try:
            found = (directory / name).stat()
            signatures.append((found.st_size, found.st_mtime_ns))
        except OSError:
            signatures.append((0, 0))
    return tuple(signatures)


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
    """Read a run directory that may be cut off, damaged, or still being written. Whatever it contains, no exception is
    raised: what cannot be read is left out, and listed in `problems`."""
    problems: list[str] = []
    stored = b""
    with contextlib.suppress(OSError):
        stored = regular(directory / SUMMARY).read_bytes()  # first: it is written after, and removed before, all others
    summary = parse_summary(stored) if stored else None

    def read(name: str, reader: Callable[[Path], Any], otherwise: Any, lost: str) -> Any:
        path = directory / name
        try:
            found = reader(path)
        except OSError as error:
            problems.append(f"{name} cannot be read: {error.strerror}")
        except Exception:  # of any parser, for any content
            problems.append(f"{name} is {'damaged' if path.exists() else 'missing'} ({lost})")
        else:
            if summary is None or any(problem.startswith(name) for problem in problems) or unchanged(path, summary):
                return found
            problems.append(f"{name} was changed after the run was finished ({lost})")
        return otherwise

    table = read(
        CONFIG, lambda path: tomllib.loads(regular(path).read_text(encoding="utf-8")), {}, "the settings are unknown"
    )
    records = read(RECORDS, lambda path: _records(path, problems), [], "its rounds are left out")
    clients = read(CLIENTS, ClientTable.read, None, "client names, sizes and faults are unknown")
    times = read(TIMES, lambda path: _times(path, problems), {}, "its seconds are left out")
    if stored and summary is None:
        problems.append(f"{SUMMARY} was changed or truncated{_edited(stored, records)}")
    return Run(directory, table, records, times, clients, summary, tuple(problems))


def _records(path: Path, problems: list[str]) -> list[dict[str, Any]]:
    """The records before the first damaged one. A last line without a newline is still being written."""
    records: list[dict[str, Any]] = []
    for line in content(path).split(b"\n")[:-1]:
        record: Any = None
        with contextlib.suppress(ValueError, RecursionError):
            record = json.loads(line)
        if isinstance(record, dict):
            record |= {key: value for key, value in UNMEASURED.items() if key not in record}
        if not is_record(record) or record["round"] != len(records) + 1:
            problems.append(f"{path.name} is damaged after round {len(records)} (later rounds are left out)")
            break
        records.append(record)
    return records


def _times(path: Path, problems: list[str]) -> dict[int, dict[str, float]]:
    """The seconds per phase, by round, without those of damaged lines."""
    lines = [parse_times(line) for line in content(path).split(b"\n")[:-1]]
    if damaged := sum(line is None for line in lines):
        problems.append(f"{path.name} is damaged in {damaged} of {len(lines)} lines (their seconds are left out)")
    return dict(filter(None, lines))


def _edited(stored: bytes, records: list[dict[str, Any]]) -> str:
    """How a changed summary differs from the records, if it can be read."""
    with contextlib.suppress(Exception):  # whatever it contains
        if found := differences(json.loads(stored), records):
            return f" ({one_line('; '.join(found))})"
    return ""


def is_record(value: Any) -> bool:
    """Whether a JSON value has all the fields that a report reads, with values of the right type."""
    return _has(value, RECORD)


def _has(value: Any, fields: Mapping[str, Callable[[Any], bool]]) -> bool:
    return isinstance(value, dict) and all(key in value and check(value[key]) for key, check in fields.items())


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= LARGEST_ID


def _is_number(value: Any) -> bool:
    """Whether it is None or a finite number. An int is compared without converting it, whatever its size."""
    return value is None or (type(value) in (int, float) and abs(value) <= sys.float_info.max)


def _is_metric(value: Any) -> bool:
    return _is_number(value) or (isinstance(value, list) and all(map(_is_number, value)))


def _is_ids(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_count, value))


def _is_reasons(value: Any) -> bool:
    """Whether it is a table of texts by client id."""
    return isinstance(value, dict) and all(
        ID.fullmatch(key) and int(key) <= LARGEST_ID and isinstance(reason, str) for key, reason in value.items()
    )


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


LARGEST_ID = 2**63 - 1
ID = re.compile("[0-9]{1,19}")
UNMEASURED: Mapping[str, Any] = {
    "notes": [],
    "values": [],
    **dict.fromkeys(("honest_gain", "honest_gain_stderr", "reward_optimum", "surrogate_all", "surrogate_filtered")),
}
"""Fields that a record may lack, with the value that means that nothing was measured."""
STEP = {"client": _is_count, "a": _is_number, "b": _is_number, "p": _is_number, "kept": _is_bool}
VALUE = {
    "client": _is_count,
    **dict.fromkeys(("value", "stderr", "mean", "mean_stderr"), _is_number),
}
RECORD: Mapping[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("round", "num_available", "num_filtered"), _is_count),
    **dict.fromkeys(("uplink_bytes", "downlink_bytes", "evaluations"), _is_count),
    **dict.fromkeys(("selected_train_loss", "test_accuracy", "test_loss"), _is_number),
    **dict.fromkeys(("reward_all", "reward_filtered"), _is_number),
    **dict.fromkeys(("honest_gain", "honest_gain_stderr", "reward_optimum"), _is_number),
    **dict.fromkeys(("surrogate_all", "surrogate_filtered"), _is_number),
    **dict.fromkeys(("considered", "selected"), _is_ids),
    **dict.fromkeys(("available", "filtered"), lambda value: value is None or _is_ids(value)),
    "did_filter": _is_bool,
    "metrics": lambda value: isinstance(value, dict) and all(map(_is_metric, value.values())),
    "refused": _is_reasons,
    "notes": _is_texts,
    "values": lambda value: isinstance(value, list) and all(_has(each, VALUE) for each in value),
    "trace": lambda value: isinstance(value, list) and all(_has(step, STEP) for step in value),
}
