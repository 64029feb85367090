"""A run whose writes fail or end at every possible point: after --resume it has the bytes of an undisturbed run."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import filfl
from faults import Death, Faults, Kind
from filfl.errors import RunError
from filfl.runs.reader import scan_run

pytestmark = pytest.mark.usefixtures("single_thread")

CONFIG: dict[str, Any] = {
    "rounds": 2,
    "filter.name": "none",
    "selection.k": 1,
    "training.epochs": 1,
    "execution.mode": "serial",
}
REPRODUCIBLE = ("config.toml", "clients.csv", "rounds.jsonl", "model.safetensors")


@pytest.fixture
def tiny(blobs: filfl.FederatedData) -> Any:
    """Makes or resumes the run, and returns the messages that it printed."""

    def run(out: Path, resume: bool = True) -> list[str]:
        said: list[str] = []
        filfl.simulate(CONFIG, blobs, lambda: nn.Linear(4, 3), out=out, resume=resume, progress=False, say=said.append)
        return said

    return run


def contents(directory: Path) -> dict[str, bytes]:
    return {name: (directory / name).read_bytes() for name in REPRODUCIBLE}


def is_clean(directory: Path) -> bool:
    """No temporary file and no old checkpoint is left."""
    checkpoints = sorted(path.name for path in (directory / "checkpoints").iterdir())
    return checkpoints == ["round-000001.checkpoint", "round-000002.checkpoint"] and not list(directory.glob("*tmp"))


def points(folder: Path, kind: Kind, run: Any) -> Iterator[tuple[str, str]]:
    """Every operation of `run` in this folder, as (what, file), after it has failed. The caller restores the folder."""
    before = folder.with_name("before")
    if folder.exists():
        shutil.copytree(folder, before)
    at = 0
    while True:
        with Faults(folder, at, kind) as faults:
            try:
                run(folder)
            except Death:
                pass
            except RunError as error:
                assert "cannot be" in str(error), "a sentence"
        if at >= len(faults.operations):
            return
        yield faults.operations[at]
        for path in folder.parent.glob("run*"):
            shutil.rmtree(path)
        if before.exists():
            shutil.copytree(before, folder)
        at += 1


@pytest.mark.parametrize("kind", ["death", "torn", "full", "denied"])
def test_a_run_resumes_after_a_fault_at_any_point(kind: Kind, tiny: Any, tmp_path: Path) -> None:
    tiny(tmp_path / "whole")
    expected = contents(tmp_path / "whole")
    out, seen = tmp_path / "run", set()
    for what, name in points(out, kind, tiny):
        seen.add((what, name.split("-")[0]))
        if kind != "torn" or what == "write":  # otherwise the same as a death
            assert tiny(out) == [], (what, name)
            assert contents(out) == expected and is_clean(out), (what, name)
            assert not scan_run(out).problems
    wanted = {("write", "rounds.jsonl"), ("fsync", "rounds.jsonl"), ("rename", "round"), ("rename", "summary.json")}
    assert wanted | {("unlink", "round"), ("rename", "config.toml")} <= seen


def test_nothing_intact_is_lost_by_a_death_while_a_damaged_run_is_moved_aside(tiny: Any, tmp_path: Path) -> None:
    out = tmp_path / "run"
    tiny(out)
    expected = contents(out)
    records = out / "rounds.jsonl"
    records.write_bytes(records.read_bytes().replace(b":", b";", 1))
    damaged = {path.name: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    seen = set()
    for what, name in points(out, "death", tiny):
        seen.add((what, name))
        tiny(out)
        assert contents(out) == expected and is_clean(out), (what, name)
        aside = {path.name: path.read_bytes() for path in (tmp_path / "run.damaged-1").rglob("*") if path.is_file()}
        assert aside == damaged, (what, name)
    assert ("rename", "run.damaged-1") in seen


def test_files_are_flushed_before_they_are_renamed_and_records_before_a_checkpoint(tiny: Any, tmp_path: Path) -> None:
    with Faults(tmp_path / "run") as faults:
        tiny(tmp_path / "run")
    done = faults.operations
    renames = [i for i, (what, _) in enumerate(done) if what == "rename"]
    assert len(renames) >= 9
    for i in renames:
        name, folder = done[i][1], "checkpoints" if done[i][1].endswith(".checkpoint") else "run"
        assert done[i - 1][0] == "fsync" and done[i - 1][1].startswith(f".{name}."), "the file itself"
        assert done[i + 1] == ("fsync", folder), "and its name"
    for t in (1, 2):
        checkpoint = done.index(("rename", f"round-{t:06d}.checkpoint"))
        appended = max(i for i in range(checkpoint) if done[i] == ("write", "rounds.jsonl"))
        assert ("fsync", "rounds.jsonl") in done[appended:checkpoint]


def test_a_full_disk_is_an_error_that_tells_what_to_do(tiny: Any, tmp_path: Path) -> None:
    with (
        Faults(tmp_path / "run", at=30, kind="full"),
        pytest.raises(RunError, match=r"No space left .*; free some space"),
    ):
        tiny(tmp_path / "run")
    assert not list((tmp_path / "run").rglob("*tmp"))
