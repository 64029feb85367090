"""Own metrics are added to the accuracy; the primary metric decides verdicts, targets, tables and pictures."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import filfl
from filfl.config.config import override
from filfl.errors import ConfigError, PluginError
from filfl.report.html.collect import ArmRuns, Section, collect
from filfl.report.html.headline import headline, measure
from filfl.report.html.render import render, report_data
from filfl.report.measures import primary_of
from filfl.report.statistics import compare_arms, default_target
from filfl.report.table import comparison_table, page_row
from filfl.runs.metrics import Primary
from filfl.runs.reader import Run
from filfl.runs.summary import reached


def recall(outputs: Tensor, targets: Tensor) -> float:
    """The accuracy on class 0."""
    return float((outputs[targets == 0].argmax(dim=1) == 0).double().mean())


def test_own_metrics_are_added_to_the_accuracy(small: dict[str, Any], tmp_path: Path) -> None:
    plain = filfl.simulate(small)
    own = filfl.simulate(small, metrics={"recall": recall, "wrong": lambda z, y: float((z.argmax(1) != y).sum())})
    assert own.accuracy == plain.accuracy and None not in own.accuracy
    for mine, other in zip(own.records, plain.records, strict=True):
        assert {k: v for k, v in mine["metrics"].items() if k not in ("recall", "wrong")} == other["metrics"]
        assert 0 <= mine["metrics"]["recall"] <= 1 and mine["metrics"]["wrong"] == int(mine["metrics"]["wrong"])
        assert {**mine, "metrics": None} == {**other, "metrics": None}, "metrics change nothing else"
    assert own.summary["final_metrics"].keys() == {"recall", "wrong"}
    assert own.summary["final_metrics"]["wrong"] == np.mean([r["metrics"]["wrong"] for r in own.records])
    replaced = filfl.simulate(small, metrics={"accuracy": lambda z, y: 0.25})
    assert replaced.accuracy == [0.25] * 4, "an own accuracy takes the place of the built-in one"


@pytest.mark.parametrize(
    ("metrics", "changes", "error", "sentence"),
    [
        ({"f": lambda z: 1.0}, {}, PluginError, "the metric f does not fit the data (outputs ["),
        ({"f": lambda z, y: "much"}, {}, PluginError, "from which it must make a number): ValueError"),
        ({"f": 3}, {}, PluginError, "metrics must be functions (outputs, targets) -> number by name"),
        ({3: recall}, {}, PluginError, "metrics must be functions"),
        ({"loss": recall}, {}, PluginError, "a metric cannot have the name loss"),
        ({"recall": recall}, {"evaluate.primary": "recal"}, ConfigError, 'did you mean "recall"?'),
        ({}, {"evaluate.better": "lower"}, ConfigError, "set evaluate.primary"),
        ({}, {"evaluate.metrics": ["recall"]}, ConfigError, "is not an import path; write package.module:function"),
        ({}, {"evaluate.metrics": ["math:nothing"]}, ConfigError, "math has no nothing"),
        ({}, {"evaluate.metrics": ["math:pi"]}, ConfigError, "must be a function (got a float)"),
        ({}, {"evaluate.metrics": ["math:sqrt", "cmath:sqrt"]}, ConfigError, "two functions have the same name"),
    ],
)
def test_mistakes_are_reported_before_the_first_round(
    small: dict[str, Any], metrics: Any, changes: dict[str, Any], error: type[Exception], sentence: str
) -> None:
    with pytest.raises(error) as found:
        filfl.simulate({**small, **changes}, metrics=metrics, callbacks=[lambda record, state: pytest.fail("a round")])
    assert sentence in str(found.value)


def run(name: str, values: list[float | None], seed: int = 0, **evaluate: str) -> Run:
    """A stored run whose metric mae has these values, one per round, of 2 MB each; its accuracy is 0.5."""
    records = [
        {
            "round": t,
            "test_accuracy": 0.5,
            "test_loss": 1.0,
            "metrics": {"accuracy": 0.5, "mae": value},
            "selected_train_loss": None,
            "num_filtered": 0,
            "num_available": 0,
            "uplink_bytes": 2_000_000,
            "notes": [],
            "considered": [],
            "values": [],
            "refused": {},
            "selected": [],
        }
        for t, value in enumerate(values, start=1)
    ]
    table = {"name": name, "seed": seed, "rounds": len(values), "evaluate": evaluate}
    return Run(Path(name), table, records, summary={})


def section(target: float | None = None, **arms: list[Run]) -> Section:
    first = next(iter(arms))
    made = tuple(ArmRuns(name, first, tuple(runs)) for name, runs in arms.items())
    return Section("title", Path("place"), tuple(range(len(made[0].runs))), made, target=target)


LOWER = {"primary": "mae", "better": "lower"}


def test_headline_and_table_of_a_metric_of_which_lower_is_better() -> None:
    # Finals are means over both rounds: 4, 5 against 2, 3, so t = 2 / sqrt(0.5 / 2 * 2) = 2.83 with 2 degrees.
    made = section(
        plain=[run("plain", [6, 2], 0, **LOWER), run("plain", [7, 3], 1, **LOWER)],
        clever=[run("clever", [3, 1], 0, **LOWER), run("clever", [4, 2], 1, **LOWER)],
    )
    statistics, target = measure(made)
    assert target == pytest.approx(1.1 * 2.5)
    shown = headline(made, statistics, target)
    assert shown["sentence"] == (
        "clever is ahead with a final mae of 2.5 ± 0.7071 (2 seeds), 2 below plain, which may be chance (p = 0.1056). "
        "It reaches mae 2.75 after 2 rounds and 4.00 MB of upload; plain after 2 rounds (in 1 of 2 seeds) and 4.00 MB."
    )
    assert [tile["value"] for tile in shown["tiles"]] == ["clever", "\u22122", "4.00 MB"]
    table = comparison_table("title", statistics, target, 2, primary=primary_of(made.started))
    assert list(table.columns)[1] == "final\nmae" and table.columns["final\nmae"] == ["4.5±0.7071", "2.5±0.7071"]
    assert table.columns["final\naccuracy"] == ["0.500", "0.500"], "the accuracy is still there"
    assert "two-sided t-tests on final mae" in table.caption and "the target mae" in table.caption
    row = page_row(statistics[1], statistics[0], primary_of(made.started), ["metrics.mae"])
    assert row["metrics.mae"] == (2.5, "2.5 ± 0.7071") and row["accuracy"][1] == "50.0 ± 0.0 %"
    assert row["difference"] == (-2, "\u22122 to plain") and row["welch-p"][1] == "0.1056"


def test_higher_is_better_by_default_and_the_loss_without_any_accuracy() -> None:
    higher = section(plain=[run("plain", [6], primary="mae")], clever=[run("clever", [3], primary="mae")])
    assert headline(higher, *measure(higher))["sentence"].startswith("plain is ahead with a final mae of 6 (1 seed), 3")
    made = run("alone", [6])
    for record in made.records:
        record["test_accuracy"] = None
    assert primary_of([made]) == Primary("loss", lower=True)
    assert primary_of([run("alone", [6])]) == Primary("accuracy") == primary_of([])
    assert primary_of([run("alone", [6], primary="loss")]) == Primary("loss", lower=True)


def bare(values: list[float]) -> list[dict[str, Any]]:
    return run("x", list(values)).records


SEEDS = st.lists(st.lists(st.floats(0.01, 100), min_size=1, max_size=8), min_size=1, max_size=3)


@given(SEEDS, SEEDS)
def test_a_metric_and_its_negative_give_the_same_verdict(mine: list[list[float]], theirs: list[list[float]]) -> None:
    n = min(len(mine), len(theirs))
    runs = {"mine": [bare(v) for v in mine[:n]], "theirs": [bare(v) for v in theirs[:n]]}
    negated = {arm: [bare([-v for v in map(Primary("mae").of, seed)]) for seed in seeds] for arm, seeds in runs.items()}
    against = {"mine": "theirs", "theirs": "theirs"}
    higher, lower = Primary("mae"), Primary("mae", lower=True)
    target = default_target(runs, higher)
    assert default_target(negated, lower) == -target
    for one, other in zip(
        compare_arms(runs, against, target, [1], higher),
        compare_arms(negated, against, -target, [1], lower),
        strict=True,
    ):
        assert one.rounds_to_target == other.rounds_to_target and one.uplink_to_target == other.uplink_to_target
        assert one.measures["metrics.mae"].mean == -other.measures["metrics.mae"].mean
        assert one.p_values("metrics.mae") == pytest.approx(other.p_values("metrics.mae"), nan_ok=True)
    best = max(
        np.mean([np.mean([Primary("mae").of(r) for r in seed[-5:]]) for seed in seeds]) for seeds in runs.values()
    )
    assert target == pytest.approx(0.9 * best)
    for records in runs["mine"]:
        found = reached(records, target, higher)
        values = [r["metrics"]["mae"] for r in records]
        assert (found is None) == all(v < target for v in values)
        assert found is None or values[found[0] - 1] >= target > max([-1, *values[: found[0] - 1]])


MODULE = """
import torch

def recall(outputs, targets):
    return float((outputs[targets == 0].argmax(dim=1) == 0).double().mean())

def mistakes(outputs, targets):
    return float((outputs.argmax(dim=1) != targets).sum())
"""


def test_a_comparison_by_an_own_metric(
    small: dict[str, Any], cli: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    Path("my_metrics.py").write_text(MODULE)
    evaluate = {"metrics": ["my_metrics:recall", "my_metrics:mistakes"], "primary": "mistakes", "better": "lower"}
    table = {**override({}, {**small, "rounds": 2}), "evaluate": evaluate}
    arms = {"none": {"filter.name": "none"}, "dgf": {"filter.name": "dgf"}}
    Path("own.toml").write_text(tomli_w.dumps({**table, "arms": arms}))
    shown = cli("compare", "own.toml", "--seeds", "1", "--jobs", "1", "--target", "250", "--out", "c")
    assert "mistakes" in shown and "to 250" in shown
    summary = json.loads(Path("c/summary.json").read_text())
    assert summary["primary"] == {"name": "mistakes", "better": "lower"} and summary["target"] == 250
    assert {"accuracy", "metrics.recall", "metrics.mistakes"} <= summary["arms"][0]["measures"].keys()
    headings = Path("c/table.md").read_text().splitlines()[2].split(" | ")
    assert headings[1] == "final mistakes" and {"final accuracy", "final recall"} <= set(headings)
    for name in ("comparison", "metrics.mistakes", "metrics.recall", "accuracy"):
        assert Path(f"c/{name}.png").stat().st_size > 1000
    data = report_data(collect([Path("c")]))
    (section,) = data["sections"]
    assert section["primary"]["key"] == "metrics.mistakes" and section["primary"]["lower"]
    assert [metric["name"] for metric in section["own"]] == ["recall", "mistakes"]
    finals = [row["metrics.mistakes"][0] for row in section["measures"]]
    winner = section["arms"][finals.index(min(finals))]["name"]
    assert section["headline"]["sentence"].startswith(f"{winner} is ahead with a final mistakes of")
    for curve in ("metrics.mistakes", "metrics.recall", "accuracy"):
        assert all(line["x"] == [1, 2] for line in section["curves"][curve])
    assert [line["mean"] for line in section["curves"]["uplink"]] == [
        line["mean"] for line in section["curves"]["metrics.mistakes"]
    ]
    assert "mistakes" in render(data)
    error = cli("compare", "own.toml", "--target", "250", "--set", "evaluate.primary=accuracy", code=2)
    assert "compare.target is an accuracy and must be between 0 and 1 (got 250)" in error
    shown = cli("run", "own.toml", "--out", "r")
    assert "final accuracy" in shown and "final recall" in shown and "final mistakes" in shown


def test_early_stopping_takes_the_primary_metric_and_its_direction(small: dict[str, Any]) -> None:
    config = {**small, "rounds": 5, "evaluate.primary": "count", "evaluate.better": "lower", "filter.name": "none"}
    counted = iter([9.0, *range(5, 100)])  # the first call tests the initial model
    result = filfl.simulate(
        config, metrics={"count": lambda z, y: next(counted)}, callbacks=[filfl.EarlyStopping(patience=2)]
    )
    assert result.summary["stopped"] == "count did not improve for 2 tests (best 5 in round 1)"
    assert len(result.records) == 3


def test_a_regression_is_judged_by_its_own_metric(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 3)).astype(np.float32)
    data = filfl.FederatedData.from_arrays(x, x @ np.float32([1, -2, 0.5]), np.arange(300) % 6)
    filfl.simulate(
        {"rounds": 2, "selection.k": 2, "filter.name": "none", "evaluate.primary": "mae", "evaluate.better": "lower"},
        data=data,
        model=lambda: nn.Sequential(nn.Linear(3, 1), nn.Flatten(0)),
        metrics={"mae": lambda z, y: torch.nn.functional.l1_loss(z, y).item()},
        out=tmp_path / "run",
    )
    (shown,) = report_data(collect([tmp_path / "run"]))["sections"]
    assert shown["headline"]["sentence"].startswith("run reaches a final mae of")
