"""The run directory: its files, its lock, and resuming an interrupted run.

config.toml          the complete config
clients.csv          the clients: id, name, number of training samples, fault
rounds.jsonl         one record per round: the same bytes for the same config and seed
times.jsonl          seconds per phase, one line per round
checkpoints/         the states from which the run can resume
model.safetensors    the final model by name: what was trained, and once the frozen parameters, where they are known
summary.json         the summary, and the form of the model's inputs; it exists only in a finished run
"""

import contextlib
import hashlib
import json
import os
import platform
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
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
from filfl.errors import RunError
from filfl.runs import checkpoint
from filfl.runs.client_table import ClientTable
from filfl.runs.files import TEMPORARY, cannot_write, sha256, to_json, write_atomic
from filfl.runs.summary import summarize

CONFIG, CLIENTS, RECORDS, TIMES = "config.toml", "clients.csv", "rounds.jsonl", "times.jsonl"
MODEL, SUMMARY = "model.safetensors", "summary.json"


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
        for old in checkpoint.rounds_saved(self.checkpoints)[self.config.checkpoint.keep :]:
            checkpoint.path_of(self.checkpoints, old).unlink(missing_ok=True)

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
            "records_sha256": sha256((self.directory / RECORDS).read_bytes()),
            "model_sha256": sha256(model),
            "versions": {
                "filfl": filfl.__version__,
                "torch": torch.__version__,
                "python": platform.python_version(),
                "machine": platform.machine(),
            },
        }
        write_atomic(self.directory / SUMMARY, (json.dumps(summary, indent=2, allow_nan=False) + "\n").encode())
        return summary

    def _append_line(self, name: str, value: Mapping[str, Any]) -> bytes:
        """Append a line of JSON to a file, and return the line."""
        line = to_json(value).encode() + b"\n"
        with _writing(self.directory), (self.directory / name).open("ab") as file:
            file.write(line)
        return line


@contextmanager
def open_store(
    directory: Path,
    config: Config,
    clients: ClientTable,
    fingerprint: str,
    device: torch.device,
    resume: bool,
    say: Callable[[str], None],
) -> Iterator[RunStore]:
    """Lock a run directory and prepare it for the next round. `say` receives messages for the user."""
    try:
        if directory.is_dir() and not (directory / CONFIG).exists() and any(map(_is_foreign, directory.iterdir())):
            raise RunError(f"{directory} is not empty and not a run directory; choose another --out")
        (directory / "checkpoints").mkdir(parents=True, exist_ok=True)
        locked = filelock.FileLock(directory / ".lock").acquire(timeout=0)
    except filelock.Timeout:
        raise RunError(f"{directory} is in use by another process; wait for it, or choose another --out") from None
    except OSError as error:
        raise RunError(f"{directory} cannot be created or locked: {error.strerror}") from None
    with locked:
        store = RunStore(directory, config, fingerprint)
        _prepare(store, clients, device, resume, say)
        yield store


def _is_foreign(path: Path) -> bool:
    """Whether this file cannot be left over from a run that was killed before it wrote its config."""
    return path.name not in (".lock", "checkpoints", CLIENTS) and not path.match(TEMPORARY)


def finished(directory: Path, fingerprint: str) -> dict[str, Any] | None:
    """The summary of a finished, undamaged run; otherwise None."""
    try:
        summary: dict[str, Any] = json.loads((directory / SUMMARY).read_bytes())
        undamaged = (
            summary["run"] == fingerprint
            and summary["records_sha256"] == sha256((directory / RECORDS).read_bytes())
            and summary["model_sha256"] == sha256((directory / MODEL).read_bytes())
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return summary if undamaged else None


def _prepare(
    store: RunStore, clients: ClientTable, device: torch.device, resume: bool, say: Callable[[str], None]
) -> None:
    directory = store.directory
    config_path = directory / CONFIG
    if config_path.exists():
        if not resume:
            raise RunError(f"{directory} already contains a run; add --resume to continue it, or choose another --out")
        _check_same_config(config_path, store.config)
    for leftover in [*directory.glob(TEMPORARY), *store.checkpoints.glob(TEMPORARY)]:
        leftover.unlink(missing_ok=True)
    clients.write(directory / CLIENTS)
    write_atomic(config_path, tomli_w.dumps(store.config.table()).encode())
    (directory / SUMMARY).unlink(missing_ok=True)
    lines = content(directory / RECORDS).splitlines(keepends=True)
    t, store.resumed = _newest_usable(store, lines, device, say)
    kept = lines[:t]
    write_atomic(directory / RECORDS, kept)
    times = [{"round": r, **seconds} for r, seconds in read_times(directory / TIMES).items() if r <= t]
    write_atomic(directory / TIMES, "".join(to_json(line) + "\n" for line in times).encode())
    store.records = [json.loads(line) for line in kept]
    store._records_hash.update(b"".join(kept))


def _newest_usable(
    store: RunStore, lines: list[bytes], device: torch.device, say: Callable[[str], None]
) -> tuple[int, State | None]:
    """The round and state of the newest usable checkpoint; round 0 if there is none. Newer ones are removed."""
    rounds = checkpoint.rounds_saved(store.checkpoints)
    for t in rounds:
        try:
            records_sha256 = sha256(b"".join(lines[:t]))
            return t, checkpoint.load(store.checkpoints, t, store.fingerprint, records_sha256, device)
        except checkpoint.Refused as reason:
            say(f"checkpoint of round {t} refused: {reason}")
            checkpoint.path_of(store.checkpoints, t).unlink(missing_ok=True)
    if rounds:
        say("no usable checkpoint; starting again from round 1")
    return 0, None


def _check_same_config(path: Path, config: Config) -> None:
    try:
        stored = dotted_keys(identity_of(tomllib.loads(path.read_text(encoding="utf-8"))))
    except (OSError, ValueError):
        raise RunError(f"{path} is damaged, so the run cannot be identified; choose another --out") from None
    given = dotted_keys(config.identity())
    for key in sorted({*given, *stored}):
        ours, theirs = given.get(key, "unset"), stored.get(key, "unset")
        if ours != theirs:
            raise RunError(
                f"{path.parent} contains a run with another config ({key}: {show(theirs)} there, {show(ours)} here); "
                "choose another --out"
            )


def content(path: Path) -> bytes:
    """The content of a file; empty if there is no file."""
    return path.read_bytes() if path.exists() else b""


def read_times(path: Path) -> dict[int, dict[str, float]]:
    """The seconds per phase, by round. A killed run may have left an incomplete line or none."""
    times = {}
    for line in content(path).splitlines():
        with contextlib.suppress(ValueError):
            read = json.loads(line)
            if isinstance(read, dict) and "round" in read and all(isinstance(v, int | float) for v in read.values()):
                times[read.pop("round")] = read
    return times


@contextmanager
def _writing(directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise cannot_write(directory, error) from None
