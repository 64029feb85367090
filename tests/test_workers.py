"""Parallel runs in worker processes: progress, errors, and a process that is killed."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from filfl.comparison.pool import Given, PlannedRun, RunProgress, run_all
from filfl.config.experiment import Experiment
from filfl.errors import ConfigError, RunError
from filfl.runs import Callback, RunStart
from filfl.simulation import simulate


class NotPicklable(Exception):
    def __init__(self, where: str, count: int) -> None:
        super().__init__(f"{where}, {count} times")


@dataclass(frozen=True)
class InRound:
    """A tracker that does something harmful in its worker process, in one round."""

    round: int
    harm: str

    @contextmanager
    def follow(self, run: RunStart) -> Iterator[Callback]:
        run.say(f"seed {run.config.seed} starts")

        def harm(record: Any, state: object) -> None:
            if record["round"] == self.round:
                if self.harm == "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                if self.harm == "bug":
                    raise NotPicklable("here", 3)
                raise ConfigError([f"{self.harm} in round {self.round}", "and a second problem"])

        yield harm


def planned(tmp_path: Path, small: dict[str, Any], seed: int, *trackers: InRound) -> PlannedRun:
    config = Experiment({}).config({**small, "seed": seed})
    return PlannedRun(config, tmp_path / f"seed-{seed}", f"run {seed}", Given(callbacks=trackers))


def finished(seen: list[RunProgress]) -> set[str]:
    return {progress.directory.name for progress in seen if progress.finished}


def test_a_killed_worker_costs_only_its_own_run(tmp_path: Path, small: dict[str, Any]) -> None:
    runs = [planned(tmp_path, small, seed, *([InRound(2, "kill")] if seed == 1 else [])) for seed in range(4)]
    seen: list[RunProgress] = []
    said: list[str] = []
    with pytest.raises(RunError, match=r"killed in 1 of 4 runs, possibly because memory ran out: \S+/seed-1;"):
        run_all(runs, 2, False, seen.append, said.append)
    assert finished(seen) == {"seed-0", "seed-2", "seed-3"}
    assert "run 1: its worker process was killed; the other runs continue" in said
    for seed in (0, 2, 3):
        rounds = [p.round for p in seen if p.directory.name == f"seed-{seed}" and not p.finished]
        assert rounds == [1, 2, 3, 4], "the progress of every round is reported, in order"

    assert len(simulate(runs[1].config, out=runs[1].directory, resume=True).records) == 4, "it can be resumed"


def test_an_error_in_a_run_stops_all_runs_and_keeps_its_message(tmp_path: Path, small: dict[str, Any]) -> None:
    endless = {**small, "rounds": 100_000}
    runs = [planned(tmp_path, endless, 0), planned(tmp_path, endless, 1, InRound(2, "disk full"))]
    said: list[str] = []
    with pytest.raises(ConfigError) as error:
        run_all(runs, 2, False, lambda progress: None, said.append)
    assert error.value.problems == ["disk full in round 2", "and a second problem"]
    assert said == ["seed 1 starts"], "what a run says reaches the parent"
    written = (tmp_path / "seed-0" / "rounds.jsonl").stat().st_size
    time.sleep(0.5)
    assert (tmp_path / "seed-0" / "rounds.jsonl").stat().st_size == written, "the other run has stopped"


def test_an_unexpected_error_keeps_its_message_and_traceback(tmp_path: Path, small: dict[str, Any]) -> None:
    with pytest.raises(RuntimeError, match="run 0: NotPicklable: here, 3 times") as error:
        run_all([planned(tmp_path, small, 0, InRound(1, "bug"))], 1, False, lambda progress: None, lambda text: None)
    assert "in harm" in str(error.value.__cause__), "the traceback of the worker process"


ENDLESS = """
name = "endless"
rounds = 100000
[data]
clients = 12
[model]
hidden = [8]
[filter]
size = 40
[selection]
k = 3
[arms.dgf]
"""


def test_a_worker_exits_when_its_parent_is_killed(tmp_path: Path, environment: dict[str, str]) -> None:
    (tmp_path / "endless.toml").write_text(ENDLESS)
    command = [sys.executable, "-m", "filfl.cli", "compare", "endless.toml", "--seeds", "1"]
    process = subprocess.Popen([*command, "--out", "out"], cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL)
    records = tmp_path / "out" / "dgf" / "seed-0" / "rounds.jsonl"

    def size() -> int:
        return records.stat().st_size if records.exists() else 0

    try:
        deadline = time.monotonic() + 120
        while not size():
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.05)
    finally:
        process.kill()
        process.wait()
    deadline = time.monotonic() + 60
    before = None
    while (now := size()) != before:
        assert time.monotonic() < deadline, "the run continues without its parent"
        before = now
        time.sleep(1)
