"""The trackers with their real libraries: what they wrote, read back and compared with rounds.jsonl."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tomli_w

import filfl
from filfl.config.config import override
from filfl.errors import ConfigError
from filfl.runs.files import to_json
from filfl.trackers import TRACKERS, MLflow, TensorBoard, WandB, make_trackers

# MLflow uses a deprecated option of SQLAlchemy.
pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated")

NAMES = list(TRACKERS)
Points = dict[str, list[tuple[int, float]]]
"""{metric: [(step, value), ...]}"""


@pytest.fixture(autouse=True)
def isolated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the settings of the user who runs the tests, and with all files in the temporary folder."""
    for name in list(os.environ):
        if name.startswith(("MLFLOW_", "WANDB_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    monkeypatch.setenv("WANDB_X_DISABLE_STATS", "true")
    for folder in ("CONFIG", "CACHE", "DATA"):
        monkeypatch.setenv(f"WANDB_{folder}_DIR", str(tmp_path / "wandb-home"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def config(small: dict[str, Any]) -> dict[str, Any]:
    return {**small, "rounds": 5, "evaluate.every": 2, "checkpoint.every": 2, "filter.name": "rgf"}


def events(directory: Path) -> tuple[Points, dict[str, Any]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    read = EventAccumulator(str(directory), size_guidance={"scalars": 0}).Reload()
    scalars = {name: [(e.step, e.value) for e in read.Scalars(name)] for name in read.Tags()["scalars"]}
    start = read.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    hparams = HParamsPluginData.FromString(start).session_start_info.hparams
    return scalars, {key: getattr(value, value.WhichOneof("kind")) for key, value in hparams.items()}


def mlflow_runs(directory: Path) -> dict[str, tuple[Points, dict[str, Any]]]:
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{directory / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("filfl")
    found = {}
    for run in client.search_runs([experiment.experiment_id]):
        assert run.info.status == "FINISHED"
        points = {
            name: sorted((m.step, m.value) for m in client.get_metric_history(run.info.run_id, name))
            for name in run.data.metrics
        }
        found[run.info.run_name] = points, dict(run.data.params)
    return found


def logged(file: bytes) -> Iterator[bytes]:
    """The messages in an offline file of W&B, a LevelDB log. wandb no longer has a Python reader for it.

    The file has blocks of 32 KiB and starts with 7 bytes of its own. A block has pieces with a header of checksum (4
    bytes), length (2) and kind (1: whole, 2: first, 3: middle, 4: last).
    """
    at, message = 7, b""
    while at + 7 <= len(file):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        length, kind = int.from_bytes(file[at + 4 : at + 6], "little"), file[at + 6]
        message += file[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            yield message
            message = b""


def wandb_runs(directory: Path) -> dict[str, tuple[Points, dict[str, Any]]]:
    from wandb.proto.wandb_internal_pb2 import Record

    found = {}
    for path in (directory / "wandb").glob("offline-run-*/*.wandb"):
        points: Points = {}
        settings: dict[str, Any] = {}
        for data in logged(path.read_bytes()):
            record = Record.FromString(data)
            if record.HasField("run"):
                name = record.run.display_name
                settings |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
            for item in record.history.item:
                key = item.key or "/".join(item.nested_key)
                if not key.startswith("_"):
                    points.setdefault(key, []).append((record.history.step.num, json.loads(item.value_json)))
        assert name not in found, "every run is written once"
        found[name] = points, settings
    return found


def read_back(name: str, directory: Path) -> tuple[Points, dict[str, Any]]:
    """What a tracker logged of the only run in a run directory."""
    if name == "tensorboard":
        return events(directory / "tensorboard")
    (found,) = (mlflow_runs if name == "mlflow" else wandb_runs)(directory).values()
    return found


def in_the_records(directory: Path) -> Points:
    """What must be logged, computed from the run store."""
    rounds = [json.loads(line) for line in (directory / "rounds.jsonl").read_text().splitlines()]
    times = [json.loads(line) for line in (directory / "times.jsonl").read_text().splitlines()]
    points: Points = {}
    for r, seconds in zip(rounds, times, strict=True):
        now = {
            "test/accuracy": r["test_accuracy"],
            "test/loss": r["test_loss"],
            "train/selected_loss": r["selected_train_loss"],
            "clients/selected": len(r["selected"]),
            "clients/refused": len(r["refused"]),
            "filter/available": 8,
            "filter/kept": len(r["filtered"]),
            "filter/evaluations": r["evaluations"],
            "filter/reward_all": r["reward_all"],
            "filter/reward_filtered": r["reward_filtered"],
            "uplink_MB": r["uplink_bytes"] / 1e6,
            "downlink_MB": r["downlink_bytes"] / 1e6,
        }
        now |= {f"seconds/{phase}": value for phase, value in seconds.items() if phase != "round"}
        for name, value in now.items():
            if value is not None:
                points.setdefault(name, []).append((r["round"], value))
    return points


def assert_same(found: Points, expected: Points, but_seconds: bool = False) -> None:
    """The same names and steps, each step once, and the same values in float32."""
    assert found.keys() == expected.keys()
    for name, points in expected.items():
        assert [t for t, _ in found[name]] == [t for t, _ in points], name
        if not (but_seconds and name.startswith("seconds/")):
            assert [v for _, v in found[name]] == pytest.approx([v for _, v in points], rel=1e-6, abs=1e-6), name


def test_all_trackers_log_every_round_under_the_same_names(config: dict[str, Any], tmp_path: Path) -> None:
    callbacks = [TensorBoard(), MLflow(), WandB()]
    result = filfl.simulate(config, callbacks=callbacks, out=tmp_path / "run")
    expected = in_the_records(tmp_path / "run")
    assert [t for t, _ in expected["test/accuracy"]] == [2, 4, 5]
    for name in NAMES:
        points, parameters = read_back(name, tmp_path / "run")
        assert_same(points, expected)
        assert {**parameters, "filter.name": "rgf"} == parameters
        assert float(parameters["training.momentum"]) == result.config.training.momentum
        assert parameters["model.hidden"] == "[8]" and int(parameters["availability.n"]) == 8
    assert not (tmp_path / "mlruns").exists() and not (tmp_path / "wandb").exists(), (
        "no files outside the run directory"
    )


def test_tracker_with_a_directory_needs_no_run_directory(config: dict[str, Any], tmp_path: Path) -> None:
    own = {"a (b)": lambda outputs, targets: 0.5}
    callbacks = [TensorBoard("t"), MLflow("m"), WandB(tmp_path / "w")]
    filfl.simulate({**config, "rounds": 1}, metrics=own, callbacks=callbacks)
    (in_mlflow, _), (in_wandb, _) = mlflow_runs(Path("m"))["run-seed-0"], wandb_runs(Path("w"))["run-seed-0"]
    for points in (events(Path("t"))[0], in_mlflow, in_wandb):
        assert points["test/a _b_"] == [(1, 0.5)]
        assert "test/accuracy" in points, "own metrics are added to it"


@pytest.mark.parametrize("kind", TRACKERS.values())
def test_a_tracker_without_a_directory_is_an_error(kind: type, config: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"has no directory for its files; write \w+\('logs'\)"):
        filfl.simulate(config, callbacks=[kind()])


KILLED = """
import os, signal, sys, json, filfl
from filfl.trackers import make_trackers
def kill(record, state):
    if record["round"] == 3:
        os.kill(os.getpid(), signal.SIGKILL)
config, out = json.loads(sys.argv[1]), sys.argv[2]
filfl.simulate(config, callbacks=[*make_trackers(["tensorboard", "mlflow", "wandb"]), kill], out=out)
"""


def test_a_killed_run_resumes_without_duplicate_steps(config: dict[str, Any], tmp_path: Path) -> None:
    out = tmp_path / "run"
    done = subprocess.run([sys.executable, "-c", KILLED, to_json(config), str(out)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert len((out / "rounds.jsonl").read_text().splitlines()) == 3, "one round more than the checkpoint"
    filfl.simulate(config, callbacks=make_trackers(NAMES), out=out, resume=True)
    for name in NAMES:
        # The third round ran twice, and a tracker may have kept the seconds of the first time.
        assert_same(read_back(name, out)[0], in_the_records(out), but_seconds=True)


@pytest.mark.parametrize("name", NAMES)
def test_a_finished_run_is_logged_afterwards_and_only_once(name: str, config: dict[str, Any], tmp_path: Path) -> None:
    out = tmp_path / "run"
    filfl.simulate(config, out=out)
    resumed = filfl.simulate(config, callbacks=make_trackers([name]), out=out, resume=True)
    assert resumed.already_finished
    assert_same(read_back(name, out)[0], in_the_records(out))
    before = modification_times(out)
    filfl.simulate(config, callbacks=make_trackers([name]), out=out, resume=True)
    assert modification_times(out) == before


def modification_times(out: Path) -> dict[Path, int]:
    """Of every file except the libraries' logs: their own processes may write to them after the run."""
    return {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.suffix != ".log"}


BROKEN = """
import os, signal, sys, json, filfl
from pathlib import Path
from filfl.trackers import make_trackers
config, out = json.loads(sys.argv[1]), Path(sys.argv[2])
def harm(record, state):
    if record["round"] == 2:
        (events,) = (out / "tensorboard").iterdir()
        events.unlink()
        events.symlink_to("/dev/full")  # the disk is full
        (out / "mlflow.db").write_bytes(b"no database" * 1000)
        for stat in Path("/proc").glob("[0-9]*/stat"):  # the process that writes for wandb is gone
            name, rest = stat.read_text().split("(", 1)[1].rsplit(")", 1)
            if "wandb-core" in name and int(rest.split()[1]) == os.getpid():
                os.kill(int(stat.parent.name), signal.SIGKILL)
filfl.simulate(config, callbacks=[*make_trackers(["tensorboard", "mlflow", "wandb"]), harm], out=out)
"""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's /dev/full and /proc")
def test_a_failing_tracker_is_reported_once_and_the_run_is_complete(config: dict[str, Any], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BROKEN, to_json(config), str(tmp_path / "run")],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    filfl.simulate(config, out=tmp_path / "alone")
    records = [(tmp_path / run / "rounds.jsonl").read_bytes() for run in ("alone", "run")]
    assert records[0] == records[1] and (tmp_path / "run" / "summary.json").exists()
    failed = re.findall(r"^(\w+) failed; the run continues without it: \S", done.stdout, re.MULTILINE)
    assert sorted(failed) == sorted(NAMES), done.stdout


def filfl_command(*arguments: str, code: int = 0) -> str:
    done = subprocess.run([sys.executable, "-m", "filfl.cli", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


def test_every_run_of_a_comparison_is_logged(config: dict[str, Any], tmp_path: Path) -> None:
    Path("c.toml").write_text(tomli_w.dumps(override({}, config)))
    arguments = ["compare", "c.toml", "--arm", "a:filter.name=rgf", "--arm", "b:filter.name=dgf", "--seeds", "1"]
    filfl_command(*arguments, "--jobs", "2", "--out", "c", *(word for name in NAMES for word in ("--track", name)))
    for resumed in (False, True):
        if resumed:  # as a worker process does
            run = tmp_path / "c" / "a" / "seed-0"
            filfl.simulate(run / "config.toml", callbacks=make_trackers(NAMES, tmp_path / "c"), out=run, resume=True)
        in_mlflow, in_wandb = mlflow_runs(tmp_path / "c"), wandb_runs(tmp_path / "c")
        assert in_mlflow.keys() == in_wandb.keys() == {"a-seed-0", "b-seed-0"}
        for arm in ("a", "b"):
            run, name = tmp_path / "c" / arm / "seed-0", f"{arm}-seed-0"
            for points, _ in (events(run / "tensorboard"), in_mlflow[name], in_wandb[name]):
                assert_same(points, in_the_records(run))


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_library_is_an_error_before_any_file_is_written(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from filfl.cli import main

    monkeypatch.setitem(sys.modules, TRACKERS[name].needs[-1], None)
    for command in ("run", "compare"):
        monkeypatch.setattr(sys, "argv", ["filfl", command, "demo", "--track", name])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 2
        assert f"pip install 'filfl[{name}]'" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_an_unknown_tracker_is_an_error() -> None:
    with pytest.raises(
        ConfigError, match=r'--track must be one of tensorboard, mlflow, wandb \(got "mlfow"\); did you'
    ):
        make_trackers(["mlfow"])
