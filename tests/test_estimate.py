"""The expected time of runs: the work is counted exactly, and the command says it before it starts."""

import re
from typing import Any

import numpy as np
import pytest

from filfl.commands.scale import duration
from filfl.config.config import Config
from filfl.simulation import simulate
from filfl.simulation.estimate import estimate, work_of


def read(changes: dict[str, Any]) -> Config:
    return Config.read(changes).with_own()


def test_work_by_hand() -> None:
    config = read(
        {
            "rounds": 4,
            "data.clients": 10,
            "data.partition": "iid",
            "selection.k": 3,
            "filter.period": 2,
            "training.steps": 5,
            "filter.honest_gain": False,
            "evaluate.every": 3,
        }
    )
    data = config.data.load(0)
    # Rounds 1, 2 and 4 filter all 10 clients (2 * 10 - 1 sets), round 3 trains 3, and rounds 3 and 4 are tested.
    work = work_of(config, data, num_V=7, num_test=100)
    assert work.steps == (3 * 10 + 3) * 5
    assert work.inferences == 3 * 19 * 7 + 2 * 100
    doubled = work_of(config.with_changes({"filter.honest_gain": True}), data, num_V=7, num_test=100)
    assert doubled.inferences == 2 * 3 * 19 * 7 + 2 * 100
    ensemble = work_of(config.with_changes({"filter.reward": "ensemble"}), data, num_V=7, num_test=100)
    assert ensemble.inferences == 3 * 10 * 7 + 2 * 100
    plain = work_of(config.with_changes({"filter.name": "none"}), data, num_V=7, num_test=100)
    assert plain.steps == 4 * 3 * 5 and plain.inferences == 2 * 100


@pytest.mark.parametrize("when", ["algorithm-1", "figure-2"])
def test_the_clients_that_train_are_those_of_the_run(small: dict[str, Any], when: str) -> None:
    changes = {**small, "rounds": 7, "availability.every": 3, "filter.when": when, "filter.name": "keep-all"}
    config = read({**changes, "training.steps": 1})
    records = simulate(config, progress=False).records
    trained = sum(len(record["considered"]) if record["considered"] else len(record["selected"]) for record in records)
    assert work_of(config, config.data.load(config.seed), 1, 1).steps == trained


def test_epochs_are_counted_in_batches() -> None:
    config = read({"rounds": 1, "data.clients": 5, "filter.name": "none", "selection.k": 5, "training.epochs": 2})
    data = config.data.load(0)
    batches = -(-data.num_train // 16)
    assert work_of(config, data, 0, 0).steps == pytest.approx(2 * np.sum(batches))


def test_twice_the_runs_take_twice_the_time(small: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    import filfl.simulation.estimate as module

    monkeypatch.setattr(module, "_seconds", lambda compute: compute() is not None and 6.0)
    config = read({**small, "filter.name": "none", "training.steps": 1, "evaluate.every": 4})
    one, two = estimate([config]), estimate([config, config])
    assert two.seconds == pytest.approx(2 * one.seconds) and one.step == 2.0 and one.device == "cpu"


def test_durations() -> None:
    assert [duration(s) for s in (0.1, 90, 120, 7200, 400_000)] == [
        *("1 seconds", "90 seconds", "2 minutes", "2 hours", "4.6 days")
    ]


def test_scale_says_what_it_will_take_and_warns_on_a_cpu(cli, tmp_path) -> None:
    text = '[data]\nclients = 6\n[selection]\nk = 2\n[execution]\ndevice = "cpu"\n[scale.paper]\nrounds = 3\n'
    (tmp_path / "c.toml").write_text(text + "[scale.long]\nrounds = 2\n[arms.a]\n[arms.b]\n")
    shown = cli("run", "c.toml", "--scale", "paper")
    assert re.search(r"paper scale: 1 run, about \d+ seconds on \d+ cores? \(estimated from .* s per training", shown)
    assert shown.index("paper scale:") < shown.index("final accuracy") and "is for a GPU" in shown
    shown = cli("compare", "c.toml", "--scale", "long", "--seeds", "1", "--jobs", "1")
    assert "long scale: 2 runs, about" in shown and "is for a GPU" not in shown
    assert "scale:" not in cli("run", "c.toml", "--set", "rounds=1")
