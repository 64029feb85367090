"""The run directory: its files, its lock, and resuming an interrupted run.

config.toml          the complete config
clients.csv          the clients: id, name, number of training samples, fault
rounds.jsonl         one record per round: the same bytes for the same config and seed
times.jsonl          seconds per phase, one line per round
checkpoints/         the states from which the run can resume; round 0 is its start
model.safetensors    the final model by name: what was trained, and once the frozen parameters, where they are known
summary.json         the summary, the form of the model's inputs, and the hashes of all files; only of a finished run

Nothing that is intact is removed or overwritten: a run that cannot be resumed is moved aside, or refused as it is. A
checkpoint that is refused is renamed.
"""

import hashlib
import json
import os
import platform
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

import filelock
import safetensors.torch
import tomli_w
import torch
from torch import Tensor

import filfl
from filfl.config.config import Config, dotted_keys, identity_of
from filfl.config.schema import show
from filfl.core.server import State
from filfl.errors import RunError, encodable
from filfl.runs import checkpoint
from filfl.runs.client_table import ClientTable
from filfl.runs.files import TEMPORARY, cannot_write, move_aside, regular, sha256, to_json, write_atomic
from filfl.runs.seal import (
    CLIENTS,
    CONFIG,
    MODEL,
    RECORDS,
    SUMMARY,
    TIMES,
    changed_files,
    read_summary,
    write_summary,
)
from filfl.runs.summary import summarize

MOST_SECONDS = 1e9
"""No phase of a round takes 30 years."""


@dataclass
class RunStore:
    """An open, locked run directory. `resumed` is the state to resume from, or None for a new run."""

    directory: Path
    config: Config
    fingerprint: str
    records: list[dict[str, Any]] = field(default_factory=list)
    resumed: State | None = None
    _records_hash: Any = field(default_factory=hashlib.sha256)

    @property
    def checkpoints(self) -> Path:
        return self.directory / "checkpoints"

    def append(self, record: Mapping[str, Any]) -> None:
        self._records_hash.update(self._append_line(RECORDS, record))
        self.records.append(dict(record))

    def append_times(self, t: int, seconds: Mapping[str, float]) -> None:
        rounded = {phase: round(value, 6) for phase, value in seconds.items()}
        self._append_line(TIMES, {"round": t, **rounded})

    def save(self, t: int, state: State) -> None:
        """Flush the records to the disk, write a checkpoint, then remove old checkpoints."""
        with _writing(self.directory), (self.directory / RECORDS).open("ab") as file:
            os.fsync(file.fileno())
        checkpoint.save(self.checkpoints, t, state, self.fingerprint, self._records_hash.hexdigest())
        _remove_leftovers(self.directory, self.config)

    def finish(
        self, weights: Mapping[str, Tensor], facts: Mapping[str, Any] = MappingProxyType({}), stopped: str | None = None
    ) -> dict[str, Any]:
        """Write the final weights and then the summary, which marks the run as finished.

        facts: are added to the summary. stopped: why the run ended before its last round, if it did.
        """
        model = safetensors.torch.save({name: value.detach().cpu().clone() for name, value in weights.items()})
        write_atomic(self.directory / MODEL, model)
        summary = {
            "name": self.config.name,
            "seed": self.config.seed,
            **summarize(self.records, stopped),
            **facts,
            "seconds": round(sum(sum(t.values()) for t in read_times(self.directory / TIMES).values()), 3),
            "run": self.fingerprint,
            "date": datetime.now(UTC).date().isoformat(),
            "versions": versions(),
        }
        known = {RECORDS: self._records_hash.hexdigest(), MODEL: sha256(model)}
        with _writing(self.directory):
            return write_summary(self.directory, summary, known)

    def set_rounds(self, rounds: int) -> None:
        """Store the number of rounds, where it was not known before the last one."""
        self.config = replace(self.config, rounds=rounds)
        with _writing(self.directory):
            _write_config(self.directory, self.config)

    def _append_line(self, name: str, value: Mapping[str, Any]) -> bytes:
        """Append a line of JSON to a file, and return the line."""
        line = to_json(value).encode() + b"\n"
        with _writing(self.directory), (self.directory / name).open("ab") as file:
            file.write(line)
        return line


def versions() -> dict[str, str]:
    """What the bits of a run depend on besides its config and data."""
    return {
        "filfl": filfl.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
    }


@contextmanager
def open_store(
    directory: Path,
    config: Config,
    clients: ClientTable,
    fingerprint: str,
    device: torch.device,
    resume: bool,
    say: Callable[[str], None],
    restart: bool = False,
    ignored: frozenset[str] = frozenset(),
) -> Iterator[RunStore]:
    """Lock a run directory and prepare it for the next round. `say` receives messages for the user.

    restart: whether a run that cannot be resumed is moved aside and made again; otherwise it is an error.
    ignored: keys of the config in which a run that is resumed may differ.
    """
    store = RunStore(directory, config, fingerprint)
    with ExitStack() as stack:
        stack.enter_context(_lock(directory))
        try:
            usable = _examine(store, device, resume, ignored)
        except NotResumable as reason:
            if not restart:
                raise RunError(
                    f"{directory} cannot be resumed ({reason}); nothing in it was changed: restore the damaged file, "
                    "or choose another directory to start again"
                ) from None
            aside, usable = move_aside(directory, "damaged"), Usable()
            stack.close()
            stack.enter_context(_lock(directory))
            say(f"{directory} cannot be resumed ({reason}); moved to {aside}, and starting again from round 1")
        _prepare(store, clients, usable, say)
        yield store


def _lock(directory: Path) -> AbstractContextManager[Any]:
    """Create a run directory if necessary, and lock it."""
    try:
        if directory.is_dir() and not (directory / CONFIG).exists() and any(map(_is_foreign, directory.iterdir())):
            raise RunError(f"{directory} is not empty and not a run directory; choose another --out")
        (directory / "checkpoints").mkdir(parents=True, exist_ok=True)
        return filelock.FileLock(directory / ".lock").acquire(timeout=0)
    except filelock.Timeout:
        raise RunError(f"{directory} is in use by another process; wait for it, or choose another --out") from None
    except OSError as error:
        raise RunError(f"{directory} cannot be created or locked: {error.strerror}") from None


def _is_foreign(path: Path) -> bool:
    """Whether this file cannot be left over from a run that was killed before it wrote its config."""
    return path.name not in (".lock", "checkpoints", CLIENTS) and not path.match(TEMPORARY)


def stored_config(directory: Path) -> dict[str, Any]:
    """The table of the config of a run; empty if it cannot be read."""
    try:
        return tomllib.loads(regular(directory / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}


def finished(directory: Path, fingerprint: str) -> dict[str, Any] | None:
    """The summary of a finished run with undamaged records and model; otherwise None."""
    summary = read_summary(directory)
    if summary is None or summary.get("run") != fingerprint:
        return None
    return None if {RECORDS, MODEL} & set(changed_files(directory, summary)) else summary


def repair_finished(
    directory: Path, config: Config, clients: ClientTable, summary: dict[str, Any], say: Callable[[str], None]
) -> dict[str, Any]:
    """Write the other files of a finished run again where they are damaged. Returns its summary."""
    changed = changed_files(directory, summary)
    if changed:
        with _writing(directory):
            _write_config(directory, config)
            clients.write(directory / CLIENTS)
            _rewrite_times(directory, len(content(directory / RECORDS).splitlines()))
            known = {name: summary["sha256"][name] for name in (RECORDS, MODEL)}
            summary = write_summary(directory, {k: v for k, v in summary.items() if k != "sha256"}, known)
        lost = " (the seconds that could not be read are lost)" if TIMES in changed else ""
        say(f"{directory}: {', '.join(changed)} had been damaged and {_were(changed)} written again{lost}")
    _remove_leftovers(directory, config)
    return summary


def _were(names: list[str]) -> str:
    return "was" if len(names) == 1 else "were"


@dataclass(frozen=True)
class Usable:
    """What of a run directory can be resumed from. By default nothing: a new run."""

    t: int = 0
    state: State | None = None
    lines: tuple[bytes, ...] = ()
    """The records up to round t."""
    refused: Mapping[int, str] = field(default_factory=dict)
    """The checkpoints that cannot be used, and why."""


class NotResumable(Exception):
    """A run without a usable checkpoint. The message is the reason."""


def _examine(store: RunStore, device: torch.device, resume: bool, ignored: frozenset[str]) -> Usable:
    """Find the newest usable checkpoint. Nothing is written."""
    directory = store.directory
    config_path = directory / CONFIG
    if not config_path.exists():
        return Usable()
    if not resume:
        raise RunError(f"{directory} already contains a run; add --resume to continue it, or choose another --out")
    stored = stored_config(directory)
    if stored:  # otherwise, a checkpoint of the same run tells that it had the same config
        _check_same_config(directory, stored, store.config, ignored)
    lines = content(directory / RECORDS).splitlines(keepends=True)
    refused: dict[int, checkpoint.Refused] = {}
    for t in checkpoint.rounds_saved(store.checkpoints):
        if t == 0 and refused:
            break  # the start of the run is no replacement for later rounds
        try:
            state = checkpoint.load(store.checkpoints, t, store.fingerprint, sha256(b"".join(lines[:t])), device)
        except checkpoint.Refused as reason:
            refused[t] = reason
        else:
            reasons = {r: str(reason) for r, reason in refused.items()}
            return Usable(t, state, tuple(lines[:t]), reasons) if t else Usable()
    summary = read_summary(directory)
    others = [reason for reason in refused.values() if isinstance(reason, checkpoint.OtherRun)]
    if others or (summary is not None and summary.get("run") != store.fingerprint):
        raise RunError(f"{directory} contains a run with other data or another model; choose another --out")
    if not stored:
        raise RunError(f"{config_path} is damaged, so the run cannot be identified; choose another --out")
    if lines or any(refused) or any((directory / name).exists() for name in (MODEL, SUMMARY)):
        raise NotResumable(next(iter(refused.values()), "it has no checkpoint"))
    return Usable(refused={t: str(reason) for t, reason in refused.items()})


def _prepare(store: RunStore, clients: ClientTable, usable: Usable, say: Callable[[str], None]) -> None:
    """Write the files of a run that is about to start or to resume."""
    directory = store.directory
    for t, reason in usable.refused.items():
        say(f"checkpoint of round {t} refused: {reason}")
        move_aside(checkpoint.path_of(store.checkpoints, t), "refused")
    if (directory / SUMMARY).exists():
        summary = read_summary(directory)
        intact = summary is not None and not changed_files(directory, summary)
        what = "; continuing it" if intact else ", but damaged since then; finishing it again"
        say(f"{directory} was finished{what} after round {usable.t}")
    with _writing(directory):
        _remove_leftovers(directory, store.config)
        clients.write(directory / CLIENTS)
        _write_config(directory, store.config)
        (directory / SUMMARY).unlink(missing_ok=True)
        write_atomic(directory / RECORDS, usable.lines)
        _rewrite_times(directory, usable.t)
    store.resumed = usable.state
    store.records = [json.loads(line) for line in usable.lines]
    store._records_hash.update(b"".join(usable.lines))


def _write_config(directory: Path, config: Config) -> None:
    text = tomli_w.dumps(config.table())
    if (shown := encodable(text)) != text:
        line = next(line for line in shown.splitlines() if line not in text)
        raise RunError(f"{directory / CONFIG} cannot be written: {line} is not UTF-8; rename that file or text")
    write_atomic(directory / CONFIG, text.encode())


def _rewrite_times(directory: Path, rounds: int) -> None:
    """Keep the readable seconds of the first rounds."""
    times = [{"round": t, **seconds} for t, seconds in read_times(directory / TIMES).items() if t <= rounds]
    write_atomic(directory / TIMES, "".join(to_json(line) + "\n" for line in times).encode())


def _remove_leftovers(directory: Path, config: Config) -> None:
    """Remove old checkpoints, and the temporary files of a process that was killed."""
    checkpoints = directory / "checkpoints"
    if not checkpoints.is_dir():
        return
    old = checkpoint.rounds_saved(checkpoints)[config.checkpoint.keep :]
    files = [checkpoint.path_of(checkpoints, t) for t in old]
    with _writing(directory):
        for path in [*files, *directory.glob(TEMPORARY), *checkpoints.glob(TEMPORARY)]:
            path.unlink(missing_ok=True)


def _check_same_config(directory: Path, table: Mapping[str, Any], config: Config, ignored: frozenset[str]) -> None:
    try:
        stored = dotted_keys(identity_of(table))
    except (TypeError, AttributeError):
        stored = {}
    given = dotted_keys(config.identity())
    for key in sorted({*given, *stored} - ignored):
        ours, theirs = given.get(key, "unset"), stored.get(key, "unset")
        if ours != theirs:
            raise RunError(
                f"{directory} contains a run with another config ({key}: {show(theirs)} there, {show(ours)} here); "
                "choose another --out"
            )


def content(path: Path) -> bytes:
    """The content of a file; empty if there is no file."""
    return regular(path).read_bytes() if path.exists() else b""


def read_times(path: Path) -> dict[int, dict[str, float]]:
    """The seconds per phase, by round. A killed run may have left an incomplete line or none."""
    return dict(filter(None, map(parse_times, content(path).splitlines())))


def parse_times(line: bytes) -> tuple[int, dict[str, float]] | None:
    """The round and the seconds per phase of one line; None if it is damaged."""
    try:
        seconds = json.loads(line)
        t = seconds.pop("round")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    numbers = all(type(value) in (int, float) and 0 <= value <= MOST_SECONDS for value in seconds.values())
    return (t, seconds) if type(t) is int and 0 < t <= sys.maxsize and numbers else None


@contextmanager
def _writing(directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise cannot_write(directory, error) from None
