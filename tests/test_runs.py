"""The run store: resume after any death, refuse any damage, one writer at a time."""

import json
import os
import random
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import filfl
from filfl.config import Config
from filfl.errors import RunError
from filfl.filtering.when import Past
from filfl.runs import checkpoint, read_run
from filfl.runs.files import sha256, to_json, write_whole
from filfl.server import State
from filfl.weights import Weights

RUN = """
import json, sys
import filfl
filfl.simulate(json.loads(sys.argv[1]), out=sys.argv[2], resume=True)
"""


def files(directory: Path) -> dict[str, bytes]:
    """What must be the same in a resumed and in an uninterrupted run."""
    return {name: (directory / name).read_bytes() for name in ("config.toml", "rounds.jsonl", "model.safetensors")}


def start(config: dict[str, Any], directory: Path) -> subprocess.Popen[bytes]:
    arguments = [sys.executable, "-c", RUN, json.dumps(config), str(directory)]
    return subprocess.Popen(arguments, stdout=subprocess.DEVNULL)


class Died(Exception):
    """Stands for a sudden death in the middle of a run."""


def die_after(t: int):
    def callback(record: Any, state: Any) -> None:
        if record["round"] == t:
            raise Died

    return callback


def interrupted(config: dict[str, Any], directory: Path, t: int) -> None:
    with pytest.raises(Died):
        filfl.simulate(config, out=directory, resume=True, callbacks=[die_after(t)])


def resume(config: dict[str, Any], directory: Path) -> tuple[filfl.Result, list[str]]:
    said: list[str] = []
    return filfl.simulate(config, out=directory, resume=True, say=said.append), said


def test_a_run_directory_has_everything(small: dict[str, Any], tmp_path: Path) -> None:
    result = filfl.simulate(small, out=tmp_path / "run")
    run = tmp_path / "run"
    assert Config.from_table(tomllib.loads((run / "config.toml").read_text())) == result.config
    lines = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    assert lines == result.records
    assert [line["round"] for line in lines] == [1, 2, 3, 4]
    wanted = {"available", "filtered", "selected", "refused", "test_accuracy", "test_loss", "train_loss", "did_filter"}
    wanted |= {
        "reward_all",
        "reward_filtered",
        "reward_selected",
        "reward_optimum",
        "evaluations",
        "uplink_bytes",
        "downlink_bytes",
    }
    wanted |= {"surrogate_all", "surrogate_filtered", "surrogate_selected"}
    assert wanted <= lines[0].keys()
    times = [json.loads(line) for line in (run / "times.jsonl").read_text().splitlines()]
    assert [line["round"] for line in times] == [1, 2, 3, 4]
    assert {"train", "filter", "select", "aggregate", "evaluate", "checkpoint"} <= times[0].keys()
    assert json.loads((run / "summary.json").read_text())["rounds"] == 4
    from safetensors.torch import load_file

    stored, final = load_file(run / "model.safetensors"), result.model.state_dict()
    assert stored.keys() == final.keys() and all(torch.equal(stored[name], final[name]) for name in stored)
    assert not list(run.rglob("*tmp")) and not list(run.rglob("*.pkl"))


def test_a_resumed_batchnorm_is_the_uninterrupted_one(blobs: Any, tmp_path: Path) -> None:
    def model() -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.BatchNorm1d(4), torch.nn.Dropout(0.3), torch.nn.Linear(4, 3))

    config = {"rounds": 4, "selection.k": 2}
    filfl.simulate(config, blobs, model, out=tmp_path / "whole")
    with pytest.raises(Died):
        filfl.simulate(config, blobs, model, out=tmp_path / "cut", callbacks=[die_after(2)])
    filfl.simulate(config, blobs, model, out=tmp_path / "cut", resume=True)
    assert files(tmp_path / "cut") == files(tmp_path / "whole")


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize(
    "selection", [{"selection.name": "random"}, {"selection.name": "divfl", "selection.of": "updates"}]
)
def test_a_resumed_run_is_the_uninterrupted_run(
    small: dict[str, Any], tmp_path: Path, every: int, selection: dict[str, Any]
) -> None:
    config = {**small, **selection, "rounds": 7, "checkpoint.every": every, "filter.when": "figure-2"}
    filfl.simulate(config, out=tmp_path / "whole")
    for t in (1, 4, 5, 7):
        interrupted(config, tmp_path / "cut", t)
    result, _ = resume(config, tmp_path / "cut")
    assert files(tmp_path / "cut") == files(tmp_path / "whole")
    assert [record["round"] for record in result.records] == list(range(1, 8))
    times = (tmp_path / "cut" / "times.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in times] == list(range(1, 8))


def test_kill_minus_nine_at_random_moments(small: dict[str, Any], tmp_path: Path) -> None:
    config = {**small, "rounds": 60}
    filfl.simulate(config, out=tmp_path / "whole")
    moments = random.Random(0)
    records = tmp_path / "killed" / "rounds.jsonl"
    killed = 0
    for _ in range(4):
        process = start(config, tmp_path / "killed")
        while process.poll() is None and not records.exists():
            time.sleep(0.01)
        time.sleep(moments.uniform(0.0, 0.25))
        process.send_signal(signal.SIGKILL)
        killed += process.wait() == -signal.SIGKILL
    assert killed, "every process had ended before it could be killed"
    resume(config, tmp_path / "killed")
    assert files(tmp_path / "killed") == files(tmp_path / "whole")


@pytest.mark.parametrize("damage", ["cut", "flip", "flip facts", "foreign", "missing", "not json", "half a line"])
def test_a_damaged_checkpoint_is_refused_and_the_one_before_is_used(
    small: dict[str, Any], tmp_path: Path, damage: str
) -> None:
    config = {**small, "rounds": 6}
    filfl.simulate(config, out=tmp_path / "whole")
    interrupted(config, tmp_path / "run", 4)
    tensors, facts = (tmp_path / "run" / "checkpoints" / f"round-000004.{end}" for end in ("safetensors", "json"))
    if damage == "cut":
        tensors.write_bytes(tensors.read_bytes()[:-7])
    elif damage == "flip":
        tensors.write_bytes(_flip(tensors.read_bytes(), 2000))
    elif damage == "flip facts":
        facts.write_bytes(facts.read_bytes().replace(b'"round":4', b'"round":5'))
    elif damage == "foreign":
        interrupted({**config, "seed": 9}, tmp_path / "other", 4)
        for path in (tensors, facts):
            path.write_bytes((tmp_path / "other" / "checkpoints" / path.name).read_bytes())
    elif damage == "missing":
        tensors.unlink()
    elif damage == "not json":
        facts.write_bytes(b"[1, 2")
    elif damage == "half a line":
        with (tmp_path / "run" / "rounds.jsonl").open("r+b") as file:
            file.truncate(file.seek(0, os.SEEK_END) - 20)
    _, said = resume(config, tmp_path / "run")
    assert len(said) == 1 and said[0].startswith("checkpoint of round 4 refused: ")
    assert {"foreign": "belongs to another run", "missing": "cannot be read"}.get(damage, "changed or cut off") in said[
        0
    ]
    assert files(tmp_path / "run") == files(tmp_path / "whole")


def test_a_refused_checkpoint_is_removed(small: dict[str, Any], tmp_path: Path) -> None:
    config = {**small, "rounds": 6, "checkpoint.every": 2}
    interrupted(config, tmp_path / "run", 4)
    newest = tmp_path / "run" / "checkpoints" / "round-000004.safetensors"
    newest.write_bytes(b"")
    interrupted(config, tmp_path / "run", 3)
    assert not newest.exists() and not newest.with_suffix(".json").exists()


def test_a_checkpoint_keeps_the_whole_state(tmp_path: Path) -> None:
    vector = torch.arange(5.0)
    past = Past(previous=np.array([1, 2]), seen=np.array([1, 2, 3]), filtered_at=4)
    state = State(
        w=Weights(vector, torch.tensor([2**40, 7])),
        S_f=(2, 3),
        past=past,
        memory={"velocity": vector * 2},
        latest={3: vector * 3, 11: vector * 4},
    )
    checkpoint.save(tmp_path, checkpoint.Saved(6, state, 10, "abc"), "run")
    back = checkpoint.load(tmp_path, 6, "run", torch.device("cpu"))
    assert (back.t, back.records_bytes, back.records_sha256, back.state.S_f) == (6, 10, "abc", (2, 3))
    assert torch.equal(back.state.w.vector, vector) and back.state.w.integers.tolist() == [2**40, 7]
    assert torch.equal(back.state.memory["velocity"], vector * 2)
    assert {k: v.tolist() for k, v in back.state.latest.items()} == {
        3: (vector * 3).tolist(),
        11: (vector * 4).tolist(),
    }
    assert back.state.past.previous.tolist() == [1, 2] and back.state.past.seen.tolist() == [1, 2, 3]
    assert back.state.past.filtered_at == 4


def test_files_are_flushed_before_they_get_their_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    happened: list[str] = []
    fsync, replace = os.fsync, Path.replace
    monkeypatch.setattr(os, "fsync", lambda handle: (happened.append("fsync"), fsync(handle))[1])
    monkeypatch.setattr(Path, "replace", lambda a, b: (happened.append(f"replace {a.name}"), replace(a, b))[1])
    write_whole(tmp_path / "file", b"whole")
    assert [word.split()[0] for word in happened] == ["fsync", "replace", "fsync"]
    assert happened[1].startswith("replace .file.") and (tmp_path / "file").read_bytes() == b"whole"


@pytest.mark.parametrize(
    "change", [{"run": None}, {"S_f": 3}, {"records_bytes": "a"}, {"format": 99}, {"round": "4"}, {"filtered_at": "x"}]
)
def test_a_checkpoint_that_makes_no_sense_is_refused_even_if_its_hash_is_right(
    change: dict[str, Any], tmp_path: Path
) -> None:
    state = State(Weights(torch.ones(2), torch.zeros(0, dtype=torch.int64)))
    checkpoint.save(tmp_path, checkpoint.Saved(4, state, 0, ""), "run")
    path = tmp_path / "round-000004.json"
    facts = {**json.loads(path.read_text()), **change}
    del facts["sha256"]
    path.write_text(to_json({**facts, "sha256": sha256(to_json(facts).encode())}))
    with pytest.raises(checkpoint.Refused):
        checkpoint.load(tmp_path, 4, "run", torch.device("cpu"))


def test_strange_names_among_the_checkpoints_are_passed_over(small: dict[str, Any], tmp_path: Path) -> None:
    interrupted(small, tmp_path / "run", 2)
    (tmp_path / "run" / "checkpoints" / "round-000009.json").mkdir()
    (tmp_path / "run" / "checkpoints" / "round-\u00b2.json").write_text("{}")
    result, said = resume(small, tmp_path / "run")
    assert len(result.records) == 4 and not said


@pytest.mark.parametrize("what", ["times.jsonl", "clients.csv"])
def test_damaged_side_files_are_mended(what: str, small: dict[str, Any], tmp_path: Path) -> None:
    interrupted(small, tmp_path / "run", 3)
    (tmp_path / "run" / what).write_bytes(b"\x00" + (tmp_path / "run" / what).read_bytes()[1:])
    resume(small, tmp_path / "run")
    run = read_run(tmp_path / "run")
    assert len(run.records) == 4 and len(run.clients) == 12
    assert [line["round"] for line in run.times] == ([2, 3, 4] if what == "times.jsonl" else [1, 2, 3, 4])
    (tmp_path / "run" / "times.jsonl").write_bytes(b"\x00")
    again, _ = resume(small, tmp_path / "run")
    assert again.already_finished
    (tmp_path / "run" / "clients.csv").write_bytes(b"")
    with pytest.raises(RunError, match=r"clients.csv is damaged"):
        read_run(tmp_path / "run")


def test_another_start_is_another_run(tmp_path: Path, blobs: Any) -> None:
    config = {"rounds": 3, "selection.k": 2}
    with pytest.raises(Died):
        filfl.simulate(config, blobs, lambda: _linear(0.0), out=tmp_path / "run", callbacks=[die_after(2)])
    said: list[str] = []
    filfl.simulate(config, blobs, lambda: _linear(1.0), out=tmp_path / "run", resume=True, say=said.append)
    assert "belongs to another run" in said[0]


def _linear(value: float) -> torch.nn.Module:
    layer = torch.nn.Linear(4, 3)
    torch.nn.init.constant_(layer.weight, value)
    return layer


def _flip(data: bytes, where: int) -> bytes:
    return data[:where] + bytes([data[where] ^ 1]) + data[where + 1 :]


def test_with_no_usable_checkpoint_the_run_starts_again_and_says_so(small: dict[str, Any], tmp_path: Path) -> None:
    filfl.simulate(small, out=tmp_path / "whole")
    interrupted(small, tmp_path / "run", 3)
    records = tmp_path / "run" / "rounds.jsonl"
    records.write_bytes(_flip(records.read_bytes(), 10))
    _, said = resume(small, tmp_path / "run")
    assert said[-1] == "no checkpoint can be used: starting again from round 1"
    assert files(tmp_path / "run") == files(tmp_path / "whole")


def test_old_checkpoints_go(small: dict[str, Any], tmp_path: Path) -> None:
    filfl.simulate({**small, "rounds": 6, "checkpoint.keep": 3}, out=tmp_path / "run")
    kept = sorted(path.stem for path in (tmp_path / "run" / "checkpoints").glob("*.json"))
    assert kept == ["round-000004", "round-000005", "round-000006"]


def test_resume_starts_afresh_on_nothing_and_says_when_it_is_finished(small: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for directory in (tmp_path / "empty", tmp_path / "missing" / "deep"):
        first, _ = resume(small, directory)
        assert not first.already_finished
        before = files(directory)
        again, _ = resume(small, directory)
        assert again.already_finished and again.records == first.records and files(directory) == before
        assert torch.equal(again.model.state_dict()["1.weight"], first.model.state_dict()["1.weight"])


def test_a_finished_run_that_lost_its_end_is_mended(small: dict[str, Any], tmp_path: Path) -> None:
    filfl.simulate(small, out=tmp_path / "run")
    whole = files(tmp_path / "run")
    (tmp_path / "run" / "model.safetensors").write_bytes(b"")
    (tmp_path / "run" / "summary.json").write_text("{")
    result, _ = resume(small, tmp_path / "run")
    assert not result.already_finished
    assert files(tmp_path / "run") == whole


def test_a_run_is_not_overwritten_and_not_mixed_with_another(small: dict[str, Any], tmp_path: Path) -> None:
    filfl.simulate(small, out=tmp_path / "run")
    with pytest.raises(RunError, match="already holds a run: add --resume"):
        filfl.simulate(small, out=tmp_path / "run")
    with pytest.raises(RunError, match=r"holds a run with another config \(rounds: 4 there, 5 here\)"):
        resume({**small, "rounds": 5}, tmp_path / "run")
    (tmp_path / "run" / "config.toml").write_text("rounds = ")
    with pytest.raises(RunError, match="is damaged"):
        resume(small, tmp_path / "run")
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / ".cat.tmp").write_text("cat")
    with pytest.raises(RunError, match="is not empty and holds no run"):
        resume(small, tmp_path / "photos")
    assert [path.name for path in (tmp_path / "photos").iterdir()] == [".cat.tmp"], "nothing was touched"
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot be made"):
        resume(small, tmp_path / "file")


def test_another_dataset_or_model_is_another_run(small: dict[str, Any], tmp_path: Path, blobs: Any) -> None:
    config = {"rounds": 3, "selection.k": 2}
    with pytest.raises(Died):
        filfl.simulate(config, data=blobs, out=tmp_path / "run", callbacks=[die_after(2)])
    said: list[str] = []
    other = blobs.with_random_labels(0.5, 3)
    filfl.simulate(config, data=other, out=tmp_path / "run", resume=True, say=said.append)
    assert "belongs to another run (other config, data or model)" in said[0]


def test_two_processes_on_one_directory(small: dict[str, Any], tmp_path: Path) -> None:
    config = {**small, "rounds": 100_000}
    first = start(config, tmp_path / "run")
    try:
        deadline = time.monotonic() + 60
        while not (tmp_path / "run" / "rounds.jsonl").exists() and time.monotonic() < deadline:
            assert first.poll() is None
            time.sleep(0.05)
        with pytest.raises(RunError, match="in use by another process"):
            filfl.simulate(config, out=tmp_path / "run", resume=True, callbacks=[lambda record, state: _die()])
    finally:
        first.kill()
        first.wait()
    with pytest.raises(Died):  # a dead process holds no lock
        filfl.simulate(config, out=tmp_path / "run", resume=True, callbacks=[lambda record, state: _die()])


def _die() -> None:
    raise Died


def test_a_full_disk_is_said_and_nothing_is_lost(
    small: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import errno

    filfl.simulate(small, out=tmp_path / "whole")
    real, calls = os.fsync, []

    def full(handle: int) -> None:
        calls.append(handle)
        if len(calls) == 12:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(handle)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match=r"No space left on device\. Free some space"):
        filfl.simulate(small, out=tmp_path / "run")
    monkeypatch.undo()
    assert not list((tmp_path / "run").rglob("*tmp"))
    resume(small, tmp_path / "run")
    assert files(tmp_path / "run") == files(tmp_path / "whole")
