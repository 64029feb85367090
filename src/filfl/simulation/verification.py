"""`filfl.verify`: whether the files of a run are as the run wrote them, and whether its rounds can be recomputed.

Hashes find damage. They do not find a record that was edited together with its hash: for that, some rounds are
recomputed from the nearest checkpoints, and must give the stored bytes again.
"""

import json
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import filelock
import numpy as np
import safetensors.torch
import torch
from torch import nn

from filfl.config.config import Config
from filfl.config.plugins import on_flower
from filfl.core.server import State
from filfl.data import Dataset, FederatedData
from filfl.errors import ConfigError, FilflError, RunError, one_line
from filfl.evaluation import Augment, Loss, Metric
from filfl.filtering import Filter, FilterFunction
from filfl.models import Model
from filfl.rng import SETUP, stream
from filfl.runs import checkpoint
from filfl.runs.files import sha256, to_json
from filfl.runs.loop import run_round
from filfl.runs.reader import Run, require_run, scan_run
from filfl.runs.seal import CLIENTS, CONFIG, MODEL, RECORDS, SEALED, SUMMARY, changed_files
from filfl.runs.store import content, versions
from filfl.runs.summary import differences
from filfl.selection import Selection, Selects
from filfl.simulation.build import Parts, make_parts, open_server
from filfl.simulation.run import FROM_PYTHON
from filfl.system import Stopwatch, numerics, one_thread

SHARE = 0.1
"""Without a number of rounds, recomputing takes at most this part of the run's own time."""
SHOWN = 60
"""Characters of a value in a message."""


@dataclass(frozen=True)
class Verification:
    """What `filfl.verify` found."""

    directory: Path
    rounds: int
    """The number of rounds in rounds.jsonl."""
    finished: bool
    problems: tuple[str, ...]
    """One sentence for each file, checkpoint or round that is not as it should be."""
    files: tuple[str, ...]
    """The files that have the hash that the run gave them. A run that is not finished has no hashes yet."""
    checkpoints: tuple[int, ...]
    """The rounds of intact checkpoints. Each has the hash of the records up to its round."""
    recomputed: tuple[int, ...]
    """The rounds that were computed again; a round that differs is among the problems."""
    why_not: str | None = None
    """Why no round was computed again, if that is not possible."""

    @property
    def ok(self) -> bool:
        return not self.problems

    @property
    def not_recomputed(self) -> tuple[int, ...]:
        return tuple(sorted({*range(1, self.rounds + 1)} - {*self.recomputed}))


def verify(
    directory: str | Path,
    data: FederatedData | Dataset | None = None,
    model: Callable[[], nn.Module] | Model | None = None,
    loss: Loss | None = None,
    metrics: Mapping[str, Metric] | None = None,
    filter: FilterFunction | Filter | None = None,
    selection: Selects | Selection | None = None,
    *,
    augment: Augment | None = None,
    rounds: int | None = None,
    seed: int = 0,
    say: Callable[[str], None] = print,
) -> Verification:
    """Check the hashes of all files of a run, and compute some of its rounds again.

    data, model, loss, metrics, filter, selection, augment: those that `simulate` got for this run, if any.
    rounds: how many rounds to compute again. By default as many as take a tenth of the run's time, at least one. 0 is
        none, and the number of rounds of the run is all of them.
    seed: another seed draws other rounds. A round is computed again from the nearest checkpoint before it, so where
        few checkpoints are kept, only rounds close to one of them or to the start are drawn.
    """
    directory = Path(directory).expanduser()
    require_run(directory)
    if rounds is not None and (type(rounds) is not int or rounds < 0):
        raise ConfigError(f"rounds must be a whole number of at least 0 (got {rounds!r})")
    with one_thread(), _locked(directory):
        checks = _Checks(scan_run(directory), content(directory / RECORDS).split(b"\n")[:-1])
        checks.check_files()
        parts = None
        try:
            config = checks.config().with_own(data=data, model=model, filter=filter, selection=selection)
            config.require_objects()
            checks.require_functions(loss=loss, metrics=metrics, augment=augment)
            parts = make_parts(config, loss, metrics, say, augment)
        except FilflError as error:
            checks.why_not = str(error).splitlines()[0]
        checks.check_checkpoints(parts)
        if parts and checks.why_not is None:
            checks.check_clients(parts)
            execution = parts.config.execution
            with numerics(execution.deterministic, execution.tf32):
                checks.recompute(parts, rounds, seed, say)
    return checks.result()


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Keep others from writing to the run, where this process may write there."""
    lock = filelock.FileLock(directory / ".lock")
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        raise RunError(f"{directory} is in use by another process; verify it when the run has ended") from None
    except OSError:
        pass  # an archive that nobody can write to
    try:
        yield
    finally:
        lock.release()


@dataclass
class _Checks:
    """What was found so far."""

    run: Run
    lines: list[bytes]
    """The lines of rounds.jsonl, whether or not they are as they should be."""
    problems: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    states: dict[int, State] = field(default_factory=dict)
    """The states in intact checkpoints, by round."""
    recomputed: list[int] = field(default_factory=list)
    why_not: str | None = None

    def check_files(self) -> None:
        """The hashes in the summary, and the summary itself."""
        directory, summary = self.run.directory, self.run.summary
        self.problems += self.run.problems
        if summary is None:
            return
        changed = changed_files(directory, summary)
        self.files += [name for name in (*SEALED, SUMMARY) if name not in changed]
        named = " ".join(self.problems)
        for name in changed:
            if name not in named:
                state = "was changed after the run was finished" if (directory / name).exists() else "is missing"
                self.problems.append(f"{name} {state}")
        if RECORDS not in changed:
            self.problems += [f"{SUMMARY}: {each}" for each in differences(summary, self.run.records)]

    def config(self) -> Config:
        if not self.run.table:
            raise RunError(f"{CONFIG} is damaged")
        if on_flower(self.run.table):
            raise RunError("this is a run on Flower, whose rounds need the nodes and their data")
        return Config.from_table(self.run.table)

    def require_functions(self, **given: object) -> None:
        """The functions that the config does not name must be those of the run."""
        wanted = (self.run.summary or {}).get(FROM_PYTHON, [])
        if missing := [name for name in wanted if not given.get(name)]:
            raise ConfigError(f"the run had its own {' and '.join(missing)} from Python; call filfl.verify with it")

    def check_checkpoints(self, parts: Parts | None) -> None:
        """Whether the checkpoints are intact, and belong to this run and its records."""
        folder, summary = self.run.directory / "checkpoints", self.run.summary
        expected: str | None = parts.fingerprint() if parts else (summary or {}).get("run")
        if parts and summary and summary["run"] != expected:
            self.why_not = "the data or the model here are not those of the run"
            self.problems.append(self.why_not)
            expected = summary["run"]
        device = parts.net.device if parts else torch.device("cpu")
        for t in checkpoint.rounds_saved(folder) if folder.is_dir() else ():
            try:
                self.states[t] = checkpoint.load(folder, t, expected, self._hash_until(t), device)
            except checkpoint.Refused as reason:
                self.problems.append(f"checkpoint of round {t}: {reason}")
                if isinstance(reason, checkpoint.OtherRun):
                    self.why_not = "the config, the data or the model here are not those of the run"

    def check_clients(self, parts: Parts) -> None:
        if sha256(content(self.run.directory / CLIENTS)) != parts.client_table().sha256():
            self.problems.append(f"{CLIENTS} does not have the clients of the data")

    def recompute(self, parts: Parts, rounds: int | None, seed: int, say: Callable[[str], None]) -> None:
        """Compute some rounds again, each from the state before it."""
        starts = {0: parts.start, **self.states}
        seconds = [sum(self.run.times.get(t, {}).values()) for t in range(1, len(self.lines) + 1)]
        known = [each for each in seconds if each]
        costs = [each or (float(np.mean(known)) if known else 1.0) for each in seconds]
        budget = SHARE * sum(costs)
        if rounds is not None:
            costs, budget = [1.0] * len(costs), float(rounds)
        chosen = choose(starts, costs, budget, seed, at_least_one=rounds is None)
        began, different = time.monotonic(), []
        for segment in segments(chosen, starts):
            with open_server(parts, say) as server:
                state = starts[segment[0] - 1]
                for t in segment:
                    if rounds is None and self.recomputed and time.monotonic() - began > budget:
                        break
                    tested = t % parts.config.evaluate.every == 0 or t == parts.config.rounds
                    state, record = run_round(server, t, state, parts.test if tested else None, Stopwatch())
                    self.recomputed.append(t)
                    if to_json(record).encode() != self.lines[t - 1]:
                        different.append(f"round {t} differs: {_first_difference(self.lines[t - 1], record)}")
                    elif t in self.states and not self._is_stored(t, state, parts):
                        different.append(f"checkpoint of round {t} differs from the recomputed state")
        last = self.states.get(len(self.lines)) if self.run.finished else None
        if last and _model_bytes(parts, last) != content(self.run.directory / MODEL):
            different.append(f"{MODEL} is not the model of the last checkpoint")
        if different and self.run.summary and self.run.summary["versions"] != versions():
            there, here = (_text(each) for each in (self.run.summary["versions"], versions()))
            different.append(f"the run was made with {there}, and this is {here}, which can change the last digits")
        self.problems += different

    def _is_stored(self, t: int, state: State, parts: Parts) -> bool:
        stored = content(checkpoint.path_of(self.run.directory / "checkpoints", t))
        return b"".join(checkpoint.encode(t, state, parts.fingerprint(), self._hash_until(t))) == stored

    def _hash_until(self, t: int) -> str:
        return sha256(b"".join(line + b"\n" for line in self.lines[:t]))

    def result(self) -> Verification:
        return Verification(
            directory=self.run.directory,
            rounds=len(self.lines),
            finished=self.run.finished,
            problems=tuple(dict.fromkeys(self.problems)),
            files=tuple(self.files),
            checkpoints=tuple(sorted(self.states)),
            recomputed=tuple(sorted(self.recomputed)),
            why_not=self.why_not,
        )


def choose(
    starts: Collection[int], costs: Sequence[float], budget: float, seed: int, at_least_one: bool = False
) -> list[int]:
    """Random rounds within the budget, with the rounds between each of them and the nearest start before it.

    costs: of the rounds from 1 on. at_least_one: a single round after a start, if the budget is too small for any.
    """
    rng = stream(seed, SETUP, "verify")
    chosen: set[int] = set()
    left = budget
    for t in (rng.permutation(len(costs)) + 1).tolist():
        new = {*range(max(start for start in starts if start < t) + 1, t + 1)} - chosen
        cost = sum(costs[r - 1] for r in new)
        if new and cost <= left:
            chosen |= new
            left -= cost
    if not chosen and at_least_one and costs:
        chosen = {int(rng.choice(sorted({start + 1 for start in starts if start < len(costs)})))}
    return sorted(chosen)


def segments(chosen: Sequence[int], starts: Collection[int]) -> Iterator[list[int]]:
    """The chosen rounds in groups of consecutive ones. A group begins after a start."""
    group: list[int] = []
    for t in chosen:
        if group and t - 1 in starts:
            yield group
            group = []
        group.append(t)
    if group:
        yield group


def _first_difference(line: bytes, record: Mapping[str, Any]) -> str:
    """The first field in which a stored record differs from a recomputed one."""
    try:
        stored = json.loads(line)
        key = next(key for key in [*record, *stored] if stored.get(key, ...) != record.get(key, ...))
        return f"{key} is {_short(stored.get(key))} in {RECORDS}, and {_short(record.get(key))} when it is recomputed"
    except (ValueError, AttributeError, RecursionError, StopIteration):
        return f"the line in {RECORDS} is damaged"


def _short(value: Any) -> str:
    return one_line(json.dumps(value))[:SHOWN]


def _model_bytes(parts: Parts, state: State) -> bytes:
    weights = parts.net.state(state.w)
    return safetensors.torch.save({name: value.detach().cpu().clone() for name, value in weights.items()})


def _text(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())
