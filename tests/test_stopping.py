"""Ending a run early: by a callback that returns filfl.STOP, and by filfl.EarlyStopping."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import filfl
from filfl.config.config import Config
from filfl.errors import ConfigError
from filfl.report.html.collect import collect
from filfl.report.html.render import report_data
from filfl.runs.callbacks import RunStart, Stop
from filfl.runs.reader import read_finished_run


def stop_at(t: int) -> Any:
    return lambda record, state: filfl.STOP if record["round"] >= t else None


@pytest.fixture
def config(small: dict[str, Any]) -> dict[str, Any]:
    return {**small, "rounds": 6, "filter.name": "none", "execution.mode": "serial"}


def test_stop_gives_the_first_records_of_the_whole_run(config: dict[str, Any], tmp_path: Path) -> None:
    whole = filfl.simulate(config, out=tmp_path / "whole")
    for t in (1, 4):
        said: list[str] = []
        out = tmp_path / f"stopped-{t}"
        stopped = filfl.simulate(config, callbacks=[stop_at(t)], out=out, say=said.append)
        assert stopped.records == whole.records[:t] == filfl.simulate(config, callbacks=[stop_at(t)]).records
        assert stopped.summary["rounds"] == t and stopped.summary["stopped"] == "a callback returned filfl.STOP"
        assert said == [f"stopped after round {t} of 6: a callback returned filfl.STOP"]
        short = filfl.simulate({**config, "rounds": t})
        pairs = zip(stopped.model.parameters(), short.model.parameters(), strict=True)
        assert all(torch.equal(mine, other) for mine, other in pairs), "the model is that of the last round"
    last = filfl.simulate(config, callbacks=[stop_at(6)])
    assert "stopped" not in last.summary and last.records == whole.records, "after the last round there is no stop"


def test_a_stopped_run_is_finished_and_not_resumed(config: dict[str, Any], tmp_path: Path) -> None:
    filfl.simulate(config, callbacks=[stop_at(3)], out=tmp_path / "run")
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir() if path.is_file()}
    again = filfl.simulate(config, out=tmp_path / "run", resume=True)
    assert again.already_finished and len(again.records) == 3
    assert again.summary["stopped"] == json.loads(before["summary.json"])["stopped"]
    assert before == {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir() if path.is_file()}
    assert read_finished_run(tmp_path / "run").finished


def test_the_report_says_that_a_run_was_stopped_and_why(config: dict[str, Any], tmp_path: Path) -> None:
    filfl.simulate(config, callbacks=[lambda record, state: filfl.Stop("the budget is spent")], out=tmp_path / "run")
    (section,) = report_data(collect([tmp_path / "run"]))["sections"]
    assert section["problems"] == ["Stopped early: run seed 0, after 1 of 6 rounds: the budget is spent."]
    assert section["runs"][0]["finished"] and section["runs"][0]["stopped"] == "the budget is spent"
    assert "So far" not in section["headline"]["sentence"]


def test_early_stopping_is_the_same_after_a_kill_and_resume(config: dict[str, Any], tmp_path: Path) -> None:
    class Killed(Exception):
        pass

    def kill(record: Any, state: Any) -> None:
        if record["round"] == 3:
            raise Killed

    config |= {"training.lr": 1e-30}  # no test is better than the first one
    stopping = filfl.EarlyStopping("accuracy", patience=3)
    expected = filfl.simulate(config, callbacks=[stopping], out=tmp_path / "whole")
    assert len(expected.records) == 4
    assert "accuracy did not improve for 3 tests (best " in expected.summary["stopped"]
    with pytest.raises(Killed):
        filfl.simulate(config, callbacks=[stopping, kill], out=tmp_path / "run")
    resumed = filfl.simulate(config, callbacks=[stopping], out=tmp_path / "run", resume=True)
    assert resumed.summary["stopped"] == expected.summary["stopped"]
    for name in ("rounds.jsonl", "model.safetensors"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def record(t: int, value: float | None, tested: bool = True) -> dict[str, Any]:
    metrics = {"accuracy": value, "mae": value} if tested else {"filtering_gap": 0.1}
    return {"round": t, "test_accuracy": value, "test_loss": value if tested else None, "metrics": metrics}


def stopped_at(
    stopping: filfl.EarlyStopping, values: list[float | None], before: int = 0, every: int = 1
) -> int | None:
    """The round after which a run with these test results is stopped; `before` of its rounds were before a resume."""
    config = Config.read({"rounds": 100 * every, "evaluate.every": every})
    records = [
        record(t, values[t // every - 1] if t % every == 0 else None, t % every == 0)
        for t in range(1, len(values) * every + 1)
    ]
    with stopping.follow(RunStart(config, None, records[:before], print)) as watch:
        for each in records[before:]:
            if isinstance(watch(each, None), Stop):
                return each["round"]
    return None


VALUES = st.lists(st.one_of(st.none(), st.floats(0, 1)), max_size=30)


@given(VALUES, st.integers(1, 5), st.sampled_from(["accuracy", "loss", "mae"]), st.integers(1, 3))
def test_early_stopping_counts_tests_without_a_better_value(
    values: list[float | None], patience: int, metric: str, every: int
) -> None:
    sign = -1 if metric == "loss" else 1
    best, without, expected = None, 0, None
    for i, value in enumerate(values, 1):
        better = value is not None and (best is None or sign * value > best)
        best, without = (sign * value, 0) if better else (best, without + 1)  # type: ignore[operator]
        if without == patience:
            expected = i * every
            break
    stopping = filfl.EarlyStopping(metric, patience)
    assert stopped_at(stopping, values, every=every) == expected
    assert stopped_at(stopping, values, every=every) == expected, "an object can follow several runs"
    cut = (expected or len(values) * every) // 2
    assert stopped_at(stopping, values, before=cut, every=every) == expected, "rounds before a resume count"


def test_early_stopping_by_hand() -> None:
    assert stopped_at(filfl.EarlyStopping(patience=2), [0.1, 0.3, 0.3, 0.2, 0.9]) == 4
    assert stopped_at(filfl.EarlyStopping(patience=2, min_change=0.05), [0.1, 0.3, 0.32, 0.34, 0.4]) == 4
    assert stopped_at(filfl.EarlyStopping("mae", 2, better="lower"), [0.3, 0.2, 0.25, 0.1, 0.1, 0.1]) == 6
    assert stopped_at(filfl.EarlyStopping("loss", 2, min_change=0.05), [0.3, 0.2, 0.17, 0.16, 0.0]) == 4


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: filfl.EarlyStopping(patience=0), "patience must be a whole number of at least 1 (got 0)"),
        (lambda: filfl.EarlyStopping(better="up"), 'better must be "higher" or "lower" (got \'up\')'),
        (lambda: filfl.EarlyStopping(min_change=-1), "min_change must be a number of at least 0"),
        (lambda: stopped_at(filfl.EarlyStopping("acuracy"), [0.5]), 'did you mean "accuracy"?'),
    ],
)
def test_mistakes_in_early_stopping(make: Any, sentence: str) -> None:
    with pytest.raises(ConfigError) as error:
        make()
    assert sentence in str(error.value)
