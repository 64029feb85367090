"""The run store: a killed run can resume, damage is detected, and only one process writes at a time."""

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

import filfl
from filfl.config.config import Config
from filfl.core.server import Past, State
from filfl.errors import RunError
from filfl.runs import checkpoint, open_store, read_run
from filfl.runs.client_table import ClientTable
from filfl.runs.files import sha256, to_json, write_atomic
from filfl.weights import Weights

RUN = """
import json, sys
import filfl
filfl.simulate(json.loads(sys.argv[1]), out=sys.argv[2], resume=True)
"""


def files(directory: Path) -> dict[str, bytes]:
    """The files that must be equal in a resumed and in an uninterrupted run."""
    return {name: (directory / name).read_bytes() for name in ("config.toml", "rounds.jsonl", "model.safetensors")}


def start(config: dict[str, Any], directory: Path) -> subprocess.Popen[bytes]:
    arguments = [sys.executable, "-c", RUN, json.dumps(config), str(directory)]
    return subprocess.Popen(arguments, stdout=subprocess.DEVNULL)


class Interrupted(Exception):
    """Ends a run in the middle."""


def stop_after(t: int):
    def callback(record: Any, state: Any) -> None:
        if record["round"] == t:
            raise Interrupted

    return callback


def interrupted(config: dict[str, Any], directory: Path, t: int) -> None:
    with pytest.raises(Interrupted):
        filfl.simulate(config, out=directory, resume=True, callbacks=[stop_after(t)])


def resume(config: dict[str, Any], directory: Path) -> tuple[filfl.Result, list[str]]:
    messages: list[str] = []
    return filfl.simulate(config, out=directory, resume=True, say=messages.append), messages


def test_files_of_a_run_directory(small: dict[str, Any], tmp_path: Path) -> None:
    result = filfl.simulate({**small, "filter.name": "keep-all"}, out=tmp_path / "run")
    run = tmp_path / "run"
    assert Config.from_table(tomllib.loads((run / "config.toml").read_text())) == result.config
    lines = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    assert lines == result.records
    assert [line["round"] for line in lines] == [1, 2, 3, 4]
    wanted = {
        "available",
        "filtered",
        "selected",
        "refused",
        "test_accuracy",
        "test_loss",
        "selected_train_loss",
        "did_filter",
    }
    wanted |= {
        "reward_all",
        "reward_filtered",
        "reward_selected",
        "reward_optimum",
        "evaluations",
        "half_evaluations",
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


def test_a_run_killed_at_random_moments_resumes(small: dict[str, Any], tmp_path: Path) -> None:
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
    assert killed, "every process ended before it was killed"
    resume(config, tmp_path / "killed")
    assert files(tmp_path / "killed") == files(tmp_path / "whole")


@pytest.mark.parametrize("damage", ["truncated", "flip", "empty", "foreign", "renamed", "half a line"])
def test_a_damaged_checkpoint_is_refused_and_the_previous_one_is_used(
    small: dict[str, Any], tmp_path: Path, damage: str
) -> None:
    config = {**small, "rounds": 6}
    filfl.simulate(config, out=tmp_path / "whole")
    interrupted(config, tmp_path / "run", 4)
    newest = checkpoint.path_of(tmp_path / "run" / "checkpoints", 4)
    if damage == "truncated":
        newest.write_bytes(newest.read_bytes()[:-7])
    elif damage == "flip":
        newest.write_bytes(_flip(newest.read_bytes(), 2000))
    elif damage == "empty":
        newest.write_bytes(b"")
    elif damage == "foreign":
        interrupted({**config, "seed": 9}, tmp_path / "other", 4)
        newest.write_bytes(checkpoint.path_of(tmp_path / "other" / "checkpoints", 4).read_bytes())
    elif damage == "renamed":
        newest.write_bytes(checkpoint.path_of(newest.parent, 3).read_bytes())
    elif damage == "half a line":
        with (tmp_path / "run" / "rounds.jsonl").open("r+b") as file:
            file.truncate(file.seek(0, os.SEEK_END) - 20)
    _, (message,) = resume(config, tmp_path / "run")
    reason = {"foreign": "belongs to another run", "renamed": "has round 3 instead of 4"}.get(
        damage, "changed or truncated"
    )
    assert message.startswith("checkpoint of round 4 refused: ") and reason in message
    assert files(tmp_path / "run") == files(tmp_path / "whole")


def test_a_refused_checkpoint_is_removed(small: dict[str, Any], tmp_path: Path) -> None:
    config = {**small, "rounds": 6, "checkpoint.every": 2}
    interrupted(config, tmp_path / "run", 4)
    newest = checkpoint.path_of(tmp_path / "run" / "checkpoints", 4)
    newest.write_bytes(b"")
    interrupted(config, tmp_path / "run", 3)
    assert not newest.exists()


def test_a_checkpoint_stores_the_complete_state(tmp_path: Path) -> None:
    vector = torch.arange(5.0)
    past = Past(previous=np.array([1, 2]), seen=np.array([1, 2, 3]), filtered_at=4)
    state = State(
        w=Weights(vector, torch.tensor([2**40, 7])),
        S_f=(2, 3),
        selected=(3, 3),
        past=past,
        memory={"velocity": vector * 2},
        latest={3: vector * 3, 11: vector * 4},
    )
    checkpoint.save(tmp_path, 6, state, "run", "abc")
    back = checkpoint.load(tmp_path, 6, "run", "abc", torch.device("cpu"))
    assert back.S_f == (2, 3) and back.selected == (3, 3)
    assert torch.equal(back.w.vector, vector) and back.w.integers.tolist() == [2**40, 7]
    assert torch.equal(back.memory["velocity"], vector * 2)
    assert {k: v.tolist() for k, v in back.latest.items()} == {
        3: (vector * 3).tolist(),
        11: (vector * 4).tolist(),
    }
    assert back.past.previous.tolist() == [1, 2] and back.past.seen.tolist() == [1, 2, 3]
    assert back.past.filtered_at == 4


@pytest.mark.parametrize("change", [{"run": None}, {"S_f": 3}, {"format": 99}, {"round": "4"}, {"filtered_at": "x"}])
def test_a_checkpoint_with_invalid_values_is_refused_even_if_its_hash_is_right(
    change: dict[str, Any], tmp_path: Path
) -> None:
    state = State(Weights(torch.ones(2), torch.zeros(0, dtype=torch.int64)))
    checkpoint.save(tmp_path, 4, state, "run", "")
    path = checkpoint.path_of(tmp_path, 4)
    tensors = safetensors.torch.load(path.read_bytes()[checkpoint.HASH_LENGTH :])
    values = {**json.loads(tensors["values"].numpy().tobytes()), **change}
    tensors["values"] = torch.frombuffer(bytearray(to_json(values).encode()), dtype=torch.uint8)
    content = safetensors.torch.save(tensors)
    path.write_bytes(sha256(content).encode() + content)
    with pytest.raises(checkpoint.Refused):
        checkpoint.load(tmp_path, 4, "run", "", torch.device("cpu"))


def test_other_files_among_the_checkpoints_are_ignored(small: dict[str, Any], tmp_path: Path) -> None:
    interrupted(small, tmp_path / "run", 2)
    (tmp_path / "run" / "checkpoints" / "round-000009.checkpoint").mkdir()
    (tmp_path / "run" / "checkpoints" / "round-\u00b2.checkpoint").write_text("{}")
    (tmp_path / "run" / "checkpoints" / "round-9.checkpoint").write_text("{}")
    result, messages = resume(small, tmp_path / "run")
    assert len(result.records) == 4 and not messages


@pytest.mark.parametrize("what", ["times.jsonl", "clients.csv"])
def test_damaged_times_and_clients_are_repaired(what: str, small: dict[str, Any], tmp_path: Path) -> None:
    interrupted(small, tmp_path / "run", 3)
    (tmp_path / "run" / what).write_bytes(b"\x00" + (tmp_path / "run" / what).read_bytes()[1:])
    resume(small, tmp_path / "run")
    run = read_run(tmp_path / "run")
    assert len(run.records) == 4 and len(run.clients) == 12
    assert list(run.times) == ([2, 3, 4] if what == "times.jsonl" else [1, 2, 3, 4])


@pytest.mark.parametrize("name", ["clients.csv", "config.toml", "times.jsonl"])
@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(b""),
        lambda path: path.unlink(),
        lambda path: path.write_bytes(_flip(path.read_bytes(), -3)),
        lambda path: path.write_bytes(path.read_bytes().replace(b"0", b"9" * 400)),
    ],
    ids=["empty", "missing", "flipped", "400 digits"],
)
def test_resuming_a_finished_run_repairs_its_smaller_files(
    name: str, damage: Any, small: dict[str, Any], tmp_path: Path
) -> None:
    small = {**small, "rounds": 1}
    filfl.simulate(small, out=tmp_path / "run")
    path = tmp_path / "run" / name
    whole = path.read_bytes()
    damage(path)
    result, messages = resume(small, tmp_path / "run")
    assert result.already_finished
    assert len(messages) == 1 and f"run: {name} had been damaged and was written again" in messages[0]
    assert path.read_bytes() == whole or name == "times.jsonl"
    assert read_run(tmp_path / "run").finished and filfl.verify(tmp_path / "run", rounds=0).ok
    again, messages = resume(small, tmp_path / "run")
    assert again.already_finished and not messages


def contents(directory: Path) -> dict[str, bytes]:
    """All files of a directory."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and path.name != ".lock"
    }


@pytest.mark.parametrize("finished", [True, False])
@pytest.mark.parametrize("what", ["data", "model"])
def test_a_run_with_other_data_or_another_model_is_refused(
    what: str, finished: bool, tmp_path: Path, blobs: Any
) -> None:
    """One pixel is enough. The checkpoint of round 0 identifies a run that has no other one."""
    config = {"rounds": 3, "selection.k": 2, "checkpoint.every": 5}
    out = tmp_path / "run"
    with contextlib.nullcontext() if finished else pytest.raises(Interrupted):
        callbacks = [] if finished else [stop_after(2)]
        filfl.simulate(config, blobs, lambda: _linear(0.0), out=out, callbacks=callbacks)
    before = contents(out)
    x = blobs.x.copy()
    x[0, 0] += 1e-3
    other = replace(blobs, x=x) if what == "data" else blobs
    with pytest.raises(RunError, match=r"contains a run with other data or another model; choose another --out"):
        filfl.simulate(config, other, lambda: _linear(float(what == "model")), out=out, resume=True)
    assert contents(out) == before
    resumed = filfl.simulate(config, blobs, lambda: _linear(0.0), out=out, resume=True)
    assert resumed.already_finished is finished and len(resumed.records) == 3


def _linear(value: float) -> torch.nn.Module:
    layer = torch.nn.Linear(4, 3)
    torch.nn.init.constant_(layer.weight, value)
    return layer


def _flip(data: bytes, where: int) -> bytes:
    changed = bytearray(data)
    changed[where] ^= 1
    return bytes(changed)


@pytest.mark.parametrize("finished", [True, False])
def test_a_run_without_a_usable_checkpoint_is_moved_aside(
    finished: bool, small: dict[str, Any], tmp_path: Path
) -> None:
    filfl.simulate(small, out=tmp_path / "whole")
    out = tmp_path / "run"
    if finished:
        filfl.simulate(small, out=out)
    else:
        interrupted(small, out, 3)
    records = out / "rounds.jsonl"
    records.write_bytes(_flip(records.read_bytes(), 10))
    before = contents(out)
    _, messages = resume(small, out)
    last = 4 if finished else 3
    assert messages == [
        f"{out} cannot be resumed (rounds.jsonl was changed or truncated before round {last}); moved to "
        f"{out}.damaged-1, and starting again from round 1"
    ]
    assert contents(tmp_path / "run.damaged-1") == before
    assert files(out) == files(tmp_path / "whole")
    for path in (out / "checkpoints").iterdir():
        path.write_bytes(b"")
    (out / "summary.json").unlink()
    resume(small, out)
    assert files(tmp_path / "run.damaged-2") == files(out), "the records and the model were intact"


def test_checkpoints_left_by_a_death_between_two_removals_are_removed(small: dict[str, Any], tmp_path: Path) -> None:
    filfl.simulate(small, out=tmp_path / "run")
    folder = tmp_path / "run" / "checkpoints"
    kept = sorted(folder.iterdir())
    for t in (1, 2):
        checkpoint.path_of(folder, t).write_bytes(b"left")
        resume(small, tmp_path / "run")
        assert sorted(folder.iterdir()) == kept
        (tmp_path / "run" / "summary.json").unlink()  # so that the second time, the run is resumed and finished again


def test_old_checkpoints_are_removed(small: dict[str, Any], tmp_path: Path) -> None:
    filfl.simulate({**small, "rounds": 6, "checkpoint.keep": 3}, out=tmp_path / "run")
    kept = sorted(path.stem for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert kept == ["round-000004", "round-000005", "round-000006"]


def test_resume_starts_a_new_run_or_detects_a_finished_one(small: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for directory in (tmp_path / "empty", tmp_path / "missing" / "deep"):
        first, _ = resume(small, directory)
        assert not first.already_finished
        before = files(directory)
        again, _ = resume(small, directory)
        assert again.already_finished and again.records == first.records and files(directory) == before
        assert torch.equal(again.model.state_dict()["1.weight"], first.model.state_dict()["1.weight"])


def test_a_finished_run_with_damaged_weights_and_summary_is_repaired(small: dict[str, Any], tmp_path: Path) -> None:
    filfl.simulate(small, out=tmp_path / "run")
    whole = files(tmp_path / "run")
    (tmp_path / "run" / "model.safetensors").write_bytes(b"")
    (tmp_path / "run" / "summary.json").write_text("{")
    result, messages = resume(small, tmp_path / "run")
    assert not result.already_finished
    assert messages == [f"{tmp_path / 'run'} was finished, but damaged since then; finishing it again after round 4"]
    assert files(tmp_path / "run") == whole


def test_an_edited_summary_is_not_believed(small: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "run" / "summary.json"
    true = filfl.simulate(small, out=tmp_path / "run").summary["final_accuracy"]
    path.write_text(path.read_text().replace(f'"final_accuracy": {true}', '"final_accuracy": 0.999'))
    with pytest.raises(RunError, match=r"summary.json was changed .*final_accuracy is 0.999 in it"):
        filfl.load(tmp_path / "run")
    assert resume(small, tmp_path / "run")[0].summary["final_accuracy"] == true
    assert filfl.load(tmp_path / "run").summary["final_accuracy"] == true


def test_a_run_is_neither_overwritten_nor_mixed_with_another(small: dict[str, Any], tmp_path: Path) -> None:
    filfl.simulate(small, out=tmp_path / "run")
    with pytest.raises(RunError, match="already contains a run; add --resume"):
        filfl.simulate(small, out=tmp_path / "run")
    with pytest.raises(RunError, match=r"contains a run with another config \(rounds: 4 there, 5 here\)"):
        resume({**small, "rounds": 5}, tmp_path / "run")
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / ".cat.tmp").write_text("cat")
    with pytest.raises(RunError, match="is not empty and not a run directory"):
        resume(small, tmp_path / "photos")
    assert [path.name for path in (tmp_path / "photos").iterdir()] == [".cat.tmp"], "nothing was changed"
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot be created"):
        resume(small, tmp_path / "file")


def test_a_damaged_config_is_repaired_if_a_checkpoint_identifies_the_run(small: dict[str, Any], tmp_path: Path) -> None:
    interrupted(small, tmp_path / "run", 2)
    config = tmp_path / "run" / "config.toml"
    whole = config.read_bytes()
    config.write_text("rounds = ")
    interrupted(small, tmp_path / "run", 3)
    assert config.read_bytes() == whole
    config.write_text("rounds = ")
    for path in (tmp_path / "run" / "checkpoints").iterdir():
        path.unlink()
    with pytest.raises(RunError, match=r"config.toml is damaged, so the run cannot be identified"):
        resume(small, tmp_path / "run")


def test_a_config_that_is_not_utf_8_is_refused(blobs: Any, tmp_path: Path) -> None:
    config = Config.read({"data.name": "femnist", "data.path": os.fsdecode(b"/\xff")})
    clients, cpu = ClientTable.of(blobs, config), torch.device("cpu")
    with (
        pytest.raises(RunError, match=r'config.toml cannot be written: path = "/.*udcff" is not UTF-8; rename'),
        open_store(tmp_path / "run", config, clients, "run", cpu, False, print),
    ):
        pass


def test_a_run_directory_is_locked_while_a_process_uses_it(small: dict[str, Any], tmp_path: Path) -> None:
    def stop(record: Any, state: Any) -> None:
        raise Interrupted

    config = {**small, "rounds": 100_000}
    first = start(config, tmp_path / "run")
    try:
        deadline = time.monotonic() + 60
        while not (tmp_path / "run" / "rounds.jsonl").exists() and time.monotonic() < deadline:
            assert first.poll() is None
            time.sleep(0.05)
        with pytest.raises(RunError, match="in use by another process"):
            filfl.simulate(config, out=tmp_path / "run", resume=True, callbacks=[stop])
    finally:
        first.kill()
        first.wait()
    with pytest.raises(Interrupted):  # the lock ends with the process
        filfl.simulate(config, out=tmp_path / "run", resume=True, callbacks=[stop])


# Files that are written outside of a run directory, too.


def test_a_link_stays_a_link_and_its_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    target, link, loop = tmp_path / "folder" / "file", tmp_path / "link", tmp_path / "loop"
    link.symlink_to(target)
    for content in (b"new", b"whole"):  # a link to nothing, then to a file
        write_atomic(link, content)
        assert link.is_symlink() and target.read_bytes() == content
    loop.symlink_to(loop)
    with pytest.raises(RunError, match=r"loop cannot be written"):
        write_atomic(loop, b"whole")


def test_a_target_that_is_not_a_regular_file_is_never_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device, a pipe, a folder or a socket is written to or refused. It stays what it is."""
    write_atomic(Path("/dev/null"), b"gone")
    assert Path("/dev/null").is_char_device()
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(RunError, match=r"pipe cannot be written: No such device"):
        write_atomic(pipe, b"nobody reads")
    whole, deadline = os.urandom(300_000), time.monotonic() + 60
    with (tmp_path / "read").open("wb") as file:
        reader = subprocess.Popen(["cat", pipe], stdout=file)
    while True:  # until the reader has opened the pipe
        try:
            write_atomic(pipe, whole)
            break
        except RunError:
            assert time.monotonic() < deadline
            time.sleep(0.02)
    assert reader.wait(60) == 0 and (tmp_path / "read").read_bytes() == whole and pipe.is_fifo()
    (tmp_path / "folder").mkdir()
    with pytest.raises(RunError, match=r"folder cannot be written: Is a directory"):
        write_atomic(tmp_path / "folder", b"whole")
    with socket.socket(socket.AF_UNIX) as server:
        monkeypatch.chdir(tmp_path)  # the path of a socket must be short
        server.bind("socket")
        with pytest.raises(RunError, match=r"socket cannot be written"):
            write_atomic(Path("socket"), b"whole")
        assert Path("socket").is_socket()
    assert not list(tmp_path.glob(".*"))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_a_full_device_stays_a_device(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"/dev/full cannot be written: No space left on device"):
        write_atomic(Path("/dev/full"), b"whole" * 100_000)
    assert Path("/dev/full").is_char_device()
