"""The page on robustness: its numbers follow from the stored ones, and those from the runs."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from filfl.comparison.figures import plan_figures
from filfl.comparison.plan import run_plans
from filfl.config.experiment import Experiment
from filfl.report.comparison import report_comparison

ROOT = Path(__file__).parent.parent


@pytest.fixture
def arena(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import arena

    return arena


def cell(*accuracies: float, **others: Any) -> dict[str, Any]:
    return {"accuracy": list(accuracies), **others}


CELLS = {
    "mean": {"none": cell(0.9, 0.9), "ipm": cell(0.2, 0.4), "alie": cell(0.8, 0.8), "backdoor": cell(0.9, success=[1])},
    "median": {
        "none": cell(0.8, 0.8),
        "ipm": cell(0.7, 0.7),
        "alie": cell(0.6, 0.6),
        "backdoor": cell(0.1, success=[0]),
    },
    "oracle": {
        "none": cell(0.9, 0.9),
        "ipm": cell(0.9, 0.9),
        "alie": cell(0.9, 0.9),
        "backdoor": cell(0.9, success=[0]),
    },
}


def test_the_worst_case_is_the_attack_with_the_lowest_mean_accuracy(arena: Any) -> None:
    # Two values 0.2 apart: standard deviation 0.1414, standard error 0.1, and t = 12.7 with one degree of freedom.
    name, accuracy, half = arena.worst_case(CELLS, "mean")
    assert name == "ipm" and accuracy == pytest.approx(0.3) and half == pytest.approx(1.27, abs=0.01)
    assert arena.worst_case(CELLS, "median")[:2] == ("alie", 0.6), "a backdoor does not count"


def test_the_table_has_the_oracle_first_then_the_best_worst_case(arena: Any) -> None:
    rows = arena.table(CELLS)
    assert [row[0] for row in rows] == ["oracle", "median", "mean"]
    assert rows[1][:6] == ["median", "60.0 ± 0.0", "alie", "80.0", "-10.0", "0"]


def test_cells_where_another_defence_is_better(arena: Any) -> None:
    assert arena.failing(CELLS, "median") == ["alie: 60.0, mean 80.0"]
    assert arena.failing(CELLS, "mean") == [], "the interval of the mean under ipm is too wide to say so"


def test_the_share_at_the_end_of_an_attack_is_a_panel(arena: Any) -> None:
    assert arena.placed(("krum", "alie-10")) == ("krum", "10 %", "alie")
    assert arena.placed(("krum", "all", "min-max")) == ("krum", "all", "min-max")
    assert arena.placed(("krum", "ipm")) == ("krum", "", "ipm")


def test_numbers_are_collected_from_finished_runs(arena: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shipped = Experiment.load("arena")
    small = {"rounds": 2, "data.name": "digits", "data.clients": 6, "selection.k": 6}
    wanted = ("mean-all-none", "mean-all-backdoor", "prune-all-ipm")
    arms = tuple(replace(arm, against=None) for arm in shipped.arms if arm.name in wanted)
    experiment = replace(shipped, arms=arms)
    monkeypatch.setattr(Experiment, "load", classmethod(lambda cls, source: experiment))
    [(plan, figure)] = plan_figures(["arena"], "laptop", 2, small, tmp_path)
    run_plans([plan], 1, True, lambda progress: None, lambda text: None)
    assert not arena.finished(tmp_path / "arena")
    comparison = report_comparison(plan, figure)
    assert arena.finished(tmp_path / "arena")
    found = arena.collect(tmp_path / "arena")
    assert found["seeds"] == [0, 1] and found["rounds"] == {"all": 2}
    cells = found["panels"]["all"]
    assert list(cells["mean"]) == ["none", "backdoor"] and set(cells["mean"]["none"]) == {
        "accuracy",
        "uplink",
        "seconds",
    }
    assert "success" in cells["mean"]["backdoor"] and "auc" in cells["prune"]["ipm"]
    accuracy = comparison.statistics[0].measures["accuracy"]
    assert cells["mean"]["none"]["accuracy"] == pytest.approx(accuracy.values, abs=1e-4)
    assert (tmp_path / "arena" / "heat-map.png").read_bytes().startswith(b"\x89PNG")


def test_the_page_is_rendered_from_the_stored_numbers(arena: Any) -> None:
    assert (ROOT / "docs" / "robustness.md").read_text(encoding="utf-8") == arena.render(arena.stored_studies())


def test_stored_numbers_are_those_of_the_shipped_experiments(arena: Any) -> None:
    for name, study in arena.stored_studies().items():
        places = {arena.placed(arm.levels) for arm in Experiment.load(name).checked_arms()}
        stored = {(d, panel, a) for panel, cells in study["panels"].items() for d, row in cells.items() for a in row}
        assert stored == places
        assert json.dumps(study), "plain numbers"
