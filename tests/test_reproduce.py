"""`filfl reproduce` with small figures and real worker processes; the page docs/results.md."""

import copy
import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

import filfl
from filfl.comparison.figures import figure_names, paper_names, plan_figures, run_key, total_minutes
from filfl.comparison.plan import runs_of
from filfl.config.experiment import Experiment, shipped_names
from filfl.config.figure import Expectation
from filfl.errors import ConfigError
from filfl.report.claims import check_figure
from filfl.report.comparison import report_comparison
from filfl.report.plots import draw_summary_bars, draw_summary_heat_map, draw_summary_uplink
from filfl.report.statistics import compare_arms

ROOT = Path(__file__).parent.parent
BASE = """
rounds = 4
[data]
clients = 12
[model]
hidden = [8]
[availability]
name = "redraw"
n = 8
[filter]
size = 40
[selection]
k = 3
[scale.paper]
rounds = 6
"""
CROSSED = (
    BASE
    + """
[figure]
paper = "Fig. 0"
claim = "Filtering helps."
shrunk = "Everything."
minutes = 0.1
expect = ["dgf-rs accuracy > none-rs", "dgf-poc kept < 1.01"]
[factors.filter]
none = { "filter.name" = "none" }
dgf = {}
[factors.selection]
rs = {}
poc = { "selection.name" = "power-of-choice" }
"""
)
ALONE = (
    BASE
    + """
[figure]
paper = "Fig. 1"
claim = "A client more, or less."
shrunk = "Everything."
minutes = 0.1
[arms.plain]
"filter.name" = "none"
[arms.more]
"selection.k" = 4
"""
)


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "filfl.cli", "reproduce", *arguments]


def reproduce(folder: Path, *arguments: str) -> str:
    """Call the command in a new process; returns its output."""
    environment = {**os.environ, "NO_COLOR": "1", "COLUMNS": "120", "TERM": "dumb"}
    done = subprocess.run(command(*arguments), cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder with two figures that were reproduced together, and the output."""
    folder = tmp_path_factory.mktemp("done")
    (folder / "crossed.toml").write_text(CROSSED)
    (folder / "alone.toml").write_text(ALONE)
    return folder, reproduce(folder, "crossed.toml", "alone.toml", "--seeds", "2", "--out", "out", "--jobs", "2")


def modification_times(folder: Path) -> dict[str, int]:
    return {path.parent.name: path.stat().st_mtime_ns for path in folder.glob("out/runs/*/rounds.jsonl")}


def test_figures_share_runs(done: tuple[Path, str]) -> None:
    folder, shown = done
    assert "10 runs at laptop scale" in shown, "6 arms x 2 seeds, of which none-rs and plain are the same"
    assert "dgf-poc kept < 1.01" in shown and "Decided at laptop scale: " in shown
    names = ("crossed", "alone")
    plans = {name: tomllib.loads((folder / "out" / name / "comparison.toml").read_text()) for name in names}
    assert plans["crossed"]["runs"]["none-rs"][:2] == plans["alone"]["runs"]["plain"][:2]
    assert plans["crossed"]["seeds"] == [0, 1] and plans["crossed"]["scale"] == "laptop"
    assert {arm: facts["against"] for arm, facts in plans["crossed"]["arms"].items()} == {
        "none-rs": "none-rs",
        "dgf-rs": "none-rs",
        "none-poc": "none-poc",
        "dgf-poc": "none-poc",
    }
    for name, facts in plans.items():
        for runs in facts["runs"].values():
            seeds = [tomllib.loads((folder / "out" / name / run / "config.toml").read_text())["seed"] for run in runs]
            assert seeds == facts["seeds"], "in the order of the seeds, relative to the file"
        assert (folder / "out" / name / "table.md").read_text().startswith(f"# {name} (")
        assert (folder / "out" / name / "comparison.png").read_bytes().startswith(b"\x89PNG")

    summary = json.loads((folder / "out/crossed/summary.json").read_text())
    assert [arm["arm"] for arm in summary["arms"]] == ["none-rs", "dgf-rs", "none-poc", "dgf-poc"]
    assert summary["arms"][3]["levels"] == ["dgf", "poc"]
    assert summary["arms"][3]["config"] == {"filter.name": "dgf", "selection.name": "power-of-choice"}
    none, dgf = summary["arms"][:2]
    difference = dgf["measures"]["accuracy"]["mean"] - none["measures"]["accuracy"]["mean"]
    assert dgf["tests"]["accuracy"]["difference"] == pytest.approx(difference, abs=1e-5)
    assert dgf["curves"]["filtered"]["rounds"] == [1, 2, 3, 4]


def test_summary_pictures_of_two_and_three_factors(done: tuple[Path, str], tmp_path: Path) -> None:
    summary = json.loads((done[0] / "out/crossed/summary.json").read_text())
    for levels in (2, 3):
        arms = [{**arm, "levels": (arm["levels"] + ["x"])[:levels]} for arm in summary["arms"]]
        path = draw_summary_bars({**summary, "arms": arms}, "accuracy", tmp_path / f"{levels}.png")
        assert path.read_bytes().startswith(b"\x89PNG")
        path = draw_summary_heat_map({**summary, "arms": arms}, "accuracy", tmp_path / f"heat-map-{levels}.png")
        assert path.read_bytes().startswith(b"\x89PNG")
        path = draw_summary_uplink({**summary, "arms": arms}, "accuracy", tmp_path / f"uplink-{levels}.png")
        assert path.read_bytes().startswith(b"\x89PNG")


def test_existing_runs_are_reused_and_never_mixed(done: tuple[Path, str], cli, monkeypatch) -> None:
    folder, _ = done
    made = modification_times(folder)
    assert len(made) == 10
    assert "3 seeds" in reproduce(folder, "alone.toml", "--seeds", "3", "--out", "out")
    again = modification_times(folder)
    assert len(again) == 12 and {key: again[key] for key in made} == made, "only the new seed was run"
    monkeypatch.chdir(folder)
    for other, key in ((["--scale", "paper"], "scale"), (["--set", "seed=100"], "set")):
        refused = cli("reproduce", "alone.toml", "--out", "out", *other, code=1)
        assert f"error: out/alone contains another comparison ({key} differs, see" in refused


def test_an_interrupted_or_killed_reproduction_resumes(tmp_path: Path, environment: dict[str, str]) -> None:
    (tmp_path / "alone.toml").write_text(ALONE)
    arguments = ["alone.toml", "--seeds", "1", "--set", "rounds=150", "--out", "out", "--jobs", "1"]

    def records() -> list[bytes]:
        return [line for path in tmp_path.glob("out/runs/*/rounds.jsonl") for line in path.read_bytes().splitlines()]

    def start_and_end(how: signal.Signals) -> str:
        before = len(records())
        process = subprocess.Popen(
            command(*arguments),
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            deadline = time.monotonic() + 120
            while len(records()) <= before:
                assert time.monotonic() < deadline and process.poll() is None
                time.sleep(0.01)
        finally:
            os.killpg(process.pid, how)
            shown, _ = process.communicate(timeout=60)
        assert process.returncode == (130 if how == signal.SIGINT else -how), shown
        return shown

    shown = start_and_end(signal.SIGINT)
    assert "Traceback" not in shown
    assert " ".join(["filfl reproduce", *arguments]) in shown
    first = records()[0]
    start_and_end(signal.SIGKILL)
    assert not (tmp_path / "out/alone/summary.json").exists()
    reproduce(tmp_path, *arguments)
    assert first in records() and len(records()) == 2 * 150
    assert (tmp_path / "out/alone/summary.json").exists()


def test_user_mistakes_end_in_an_error_message(cli, tmp_path: Path) -> None:
    wrong = tmp_path / "crossed.toml"
    assert "error: name the figures to reproduce (see filfl reproduce --list)" in cli("reproduce", code=2)
    assert "error: demo has no [figure] section" in cli("reproduce", "demo", code=2)
    assert "did you mean poc-femnist? (known: approximation-cifar10" in cli("reproduce", "poc-imagenet", code=2)
    wrong.write_text(CROSSED.replace("dgf-poc kept", "dgf-poc kapt"))
    assert "error: figure: a measure must be one of" in cli("reproduce", "crossed.toml", code=2)
    wrong.write_text(CROSSED.replace("dgf-poc kept", "opt-poc kept"))
    assert 'error: crossed: figure.expect: there is no arm "opt-poc"' in cli("reproduce", "crossed.toml", code=2)
    wrong.write_text(CROSSED.replace("dgf-poc kept <", "dgf-poc kept"))
    assert "error: crossed: figure.expect must be ARM MEASURE > ARM" in cli("reproduce", "crossed.toml", code=2)
    wrong.write_text(CROSSED.replace("[figure]", '[figure]\ncurves = ["accurracy"]'))
    assert "error: figure.curves must be one of accuracy" in cli("reproduce", "crossed.toml", code=2)
    assert not (tmp_path / "reproduction").exists()


NAMES = [
    "poc-shakespeare",
    "poc-femnist",
    "poc-cifar10",
    "fedprox-femnist",
    "fedprox-shakespeare",
    "rs-vs-divfl-cifar10",
    "divfl-cifar10",
    "period-femnist",
    "filter-size-shakespeare",
    "filter-size-femnist",
    "variable-filter-cifar10",
    "filtering-rates",
    "approximation-cifar10",
    "convergence",
    "noisy-clients",
    "logit-filtering",
    "logit-filtering-shakespeare",
    "do-no-harm",
    "do-no-harm-shares",
    "do-no-harm-femnist",
    "do-no-harm-cifar10",
    "do-no-harm-shakespeare",
    "client-values",
]
"""Those on docs/results.md, in its order."""
OLDER = {
    *("poc-shakespeare", "poc-femnist", "poc-cifar10", "fedprox-femnist", "fedprox-shakespeare", "rs-vs-divfl-cifar10"),
    *("divfl-cifar10", "period-femnist", "filter-size-shakespeare", "filter-size-femnist", "variable-filter-cifar10"),
    *("filtering-rates", "approximation-cifar10"),
}
"""Those whose stored runs have older settings; none, as soon as they are run again."""
ARENA = ["arena", "arena-shares", "arena-filtering-set", "arena-femnist"]
"""Those on docs/robustness.md."""


def test_all_is_every_figure_of_the_paper_and_no_study_of_our_own() -> None:
    assert {"poc-femnist", "convergence"} <= set(paper_names()) < set(NAMES)
    assert not {"arena", "do-no-harm", "client-values"} & set(paper_names())


def test_list_shows_claim_arms_and_time(cli) -> None:
    lines = cli("reproduce", "--list").splitlines()
    names = [line.split()[0] for line in lines if line and not line.startswith(" ")]
    assert sorted(names[:-1]) == sorted(NAMES + ARENA) and names[-1] == "all"
    at = next(i for i, line in enumerate(lines) if line.startswith("poc-femnist "))
    assert "App. E.1" in lines[at] and "min on 2 cores" in lines[at]
    assert "7 points more test accuracy" in " ".join(lines[at : at + 3])
    assert "arms: none-rs, dgf-rs, rgf-rs, none-poc, dgf-poc, rgf-poc" in " ".join(lines[at : at + 6])


def test_times_are_those_of_the_stored_runs(page) -> None:
    """On two cores, two runs are made at a time. Times of settings that have not been run are estimates."""
    stored = page.summaries()
    for name in figure_names():
        figure = Experiment.load(name).figure
        measured = name in stored and not page.is_older(name, stored[name])
        assert figure is not None and figure.estimated != measured, name
        if measured:
            summary = stored[name]
            seconds = sum(made["seconds"] for made in summary["made"])
            assert figure.minutes == max(1, round(3 * seconds / len(summary["seeds"]) / 2 / 60)), name


def test_a_run_that_figures_share_counts_once_in_the_total_time() -> None:
    minutes = {name: Experiment.load(name).figure.minutes for name in ("poc-femnist", "fedprox-femnist")}
    assert total_minutes(["poc-femnist", "poc-femnist"]) == pytest.approx(minutes["poc-femnist"])
    assert total_minutes([*minutes]) == pytest.approx(sum(minutes.values()))
    assert total_minutes(paper_names()) < sum(Experiment.load(name).figure.minutes for name in paper_names())


def test_missing_data_is_named_before_the_first_run(cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("FILFL_DATA", raising=False)
    (shown,) = cli("reproduce", "poc-femnist", code=1).splitlines()[2:]
    assert shown.startswith("error: data.path is not set; set it to a folder with LEAF's train/*.json")
    assert "FILFL_DATA (not set now) to a folder that has femnist_leaf_writers.npz or femnist or leaf/data" in shown
    assert "docs/datasets.md" in shown and (ROOT / "docs" / "datasets.md").exists()
    monkeypatch.setenv("FILFL_DATA", str(tmp_path / "data"))
    (tmp_path / "data" / "femnist").mkdir(parents=True)
    problems = cli("reproduce", "filtering-rates", code=1).splitlines()[2:]
    assert len(problems) == 2 and "cifar-10-batches-py" in problems[0] and "shakespeare" in problems[1]
    assert all(f"({tmp_path / 'data'} has none of them)" in problem for problem in problems)
    assert not (tmp_path / "reproduction").exists()


@pytest.mark.parametrize("scale", ["laptop", "paper"])
@pytest.mark.parametrize("name", NAMES)
def test_every_arm_of_every_figure_is_a_valid_config(name: str, scale: str, tmp_path: Path) -> None:
    ((plan, figure),) = plan_figures([name], scale, 1, {}, tmp_path)
    assert {Expectation.parse(text).arm for text in figure.expect} <= plan.runs.keys()
    assert figure.expect
    check_figure(figure)


@pytest.mark.parametrize("name", paper_names())
def test_the_authors_scale_is_the_papers_with_valid_changes(name: str, tmp_path: Path) -> None:
    if name == "convergence":  # a study of the theorem, which the authors did not run
        return
    ((plan, figure),) = plan_figures([name], "authors", 1, {}, tmp_path)
    assert {Expectation.parse(text).arm for text in figure.expect} <= plan.runs.keys()
    experiment = Experiment.load(name)
    paper, authors = (experiment.at_scale(scale) for scale in ("paper", "authors"))
    for arm in authors.arms:
        config = authors.config({}, arm)
        assert config.training.momentum == 0.9 and config.training.weight_decay == 1e-4
        assert config.rounds == paper.config({}, arm).rounds


def keys(name: str) -> dict[str, str]:
    experiment = Experiment.load(name)
    return {arm.name: run_key(experiment.config({"seed": 0}, arm)) for arm in experiment.checked_arms()}


def test_figures_have_runs_in_common() -> None:
    poc, speare, cifar = keys("poc-femnist"), keys("poc-shakespeare"), keys("poc-cifar10")
    few, divfl, rates = keys("rs-vs-divfl-cifar10"), keys("divfl-cifar10"), keys("filtering-rates")
    assert poc["none-poc"] == keys("period-femnist")["none"] == keys("filter-size-femnist")["none"]
    assert poc["dgf-poc"] == keys("period-femnist")["h-5"] == keys("filter-size-femnist")["m-quarter"]
    assert speare["dgf-poc"] == keys("filter-size-shakespeare")["m-34"] == rates["shakespeare-dgf"]
    assert cifar["none-poc"] == keys("variable-filter-cifar10")["none"]
    assert (
        few["divfl"] == divfl["none"] and few["rgf"] == rates["cifar10-rgf"] and poc["rgf-poc"] == rates["femnist-rgf"]
    )
    assert [cifar[f"{name}-rs"] for name in ("none", "dgf", "rgf")] == [few[name] for name in ("rs", "dgf", "rgf")]
    assert len({*poc.values()}) == 10


def test_run_key_ignores_what_does_not_change_the_result() -> None:
    config = Experiment.load("demo").config({})
    same = Experiment.load("demo").config({"name": "other", "execution.workers": 7})
    assert run_key(config) == run_key(same)
    assert run_key(config) != run_key(Experiment.load("demo").config({"seed": 1}))


def test_from_inherits_the_base_and_the_scales() -> None:
    made = Experiment.from_table(
        {
            "from": "femnist",
            "rounds": 7,
            "model": {"name": "mlp", "hidden": [5]},
            "scale": {"paper": {"rounds": 9, "arms": {"big": {"selection.k": 9}}}},
            "arms": {"small": {"from": "demo/filfl-rgf", "selection.k": 2}},
        }
    )
    assert made.base["rounds"] == 7 and made.base["model"] == {"name": "mlp", "hidden": [5]}
    assert made.base["training"] == Experiment.load("femnist").base["training"]
    assert [arm.name for arm in made.arms] == ["small"], "arms are not inherited"
    paper = made.at_scale("paper")
    assert paper.base["rounds"] == 9 and paper.config({}).training.lr == 0.003, "scales are inherited key by key"
    assert [arm.name for arm in paper.arms] == ["big"]
    small = made.config({}, made.arms[0])
    demo = Experiment.load("demo")
    assert small.selection.k == 2 and small.filter.name == "rgf" and small.rounds == demo.base["rounds"]


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"from": "femnits"}, r'from must be one of .*did you mean "femnist"'),
        ({"from": 3}, "from must be one of"),
        ({"arms": {"a": {"from": "demo/nobody"}}}, "the arm of demo must be one of fedavg"),
        ({"factors": {"filter": {"dgf": 3}}}, "factors.filter is a section"),
        ({"figure": {"paper": "Fig. 1"}}, "figure.claim is missing"),
    ],
)
def test_invalid_experiment_files_are_rejected(table: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Experiment.from_table(table)


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import results_page

    return results_page


def test_results_page_is_rendered_from_the_stored_summaries(page) -> None:
    assert (
        list(page.texts()) == NAMES and sorted(NAMES + ARENA) == figure_names() and set(NAMES) <= set(shipped_names())
    )
    assert page.summaries().keys() <= set(NAMES)
    assert (ROOT / "docs" / "results.md").read_text(encoding="utf-8") == page.render(page.summaries(), page.texts())


def test_stored_summaries_match_the_shipped_configs_or_are_marked(page) -> None:
    stored = page.summaries()
    older = {name for name, summary in stored.items() if page.is_older(name, summary)}
    assert older <= OLDER, "run these figures again, or list them as older"
    for name in stored:
        facts = page.facts(name, stored[name])
        assert ("The settings were changed after these runs" in facts) == (name in older)


def test_a_summary_is_older_if_a_setting_or_an_arm_differs(page, done: tuple[Path, str], monkeypatch) -> None:
    monkeypatch.chdir(done[0])
    summary = json.loads((done[0] / "out/crossed/summary.json").read_text())
    assert not page.is_older("crossed.toml", summary)
    assert page.is_older("crossed.toml", {**summary, "arms": summary["arms"][:-1]})
    changed = {**summary["arms"][0], "config": {"filter.name": "rgf"}}
    assert page.is_older("crossed.toml", {**summary, "arms": [changed, *summary["arms"][1:]]})


def test_sentences_were_written_for_the_decisions_on_the_page(page) -> None:
    """If new seeds change a decision, the sentences about it have to be written again."""
    found = page.found_in(page.summaries(), page.texts())
    decisions = {name: found[name][0][0].decision if name in found else "not measured" for name in page.texts()}
    assert {name: written["decided"] for name, written in page.texts().items()} == decisions


def test_results_page_separates_filter_and_selection(page) -> None:
    finals = {"none-rs": 0.5, "dgf-rs": 0.6, "rgf-rs": 0.55, "none-poc": 0.3, "dgf-poc": 0.45, "rgf-poc": 0.4}
    runs = {
        arm: [
            [{"round": 1, "test_accuracy": final + spread, "test_loss": 1.0, "num_filtered": 4, "uplink_bytes": 1}]
            for spread in (-0.01, 0.0, 0.01)
        ]
        for arm, final in finals.items()
    }
    statistics = compare_arms(runs, dict.fromkeys(finals, "none-rs"), 0.5, [1])
    arms = [{**asdict(arm), "levels": arm.arm.split("-")} for arm in statistics]
    rows = [line.split(" | ") for line in page.shares({"poc-femnist": {"arms": arms}})][2:]
    assert [(row[2], row[3].split()[0]) for row in rows] == [
        ("dgf-rs - none-rs", "+10.0"),
        ("rgf-rs - none-rs", "+5.0"),
        ("none-rs - none-poc", "+20.0"),
        ("dgf-rs - none-poc", "+30.0"),
        ("rgf-rs - none-poc", "+25.0"),
    ]
    levels = {arm: tuple(arm.split("-")) for arm in finals}
    assert "| poc | 0.300±0.010 | 0.450±0.010 | 0.400±0.010 |" in page.pivot(statistics, levels, "accuracy")


def test_new_results_are_added_to_the_page(page, crossed: dict[str, Any], tmp_path: Path, monkeypatch) -> None:
    summary = crossed
    for name, scale in (("poc-femnist", "laptop"), ("poc-cifar10", "paper")):
        arms = [*summary["arms"], *({**a, "arm": a["arm"].replace("dgf", "rgf")} for a in summary["arms"])]
        arms = list({arm["arm"]: arm for arm in arms}.values())
        (tmp_path / name).mkdir()
        new = {**summary, "name": name, "scale": scale, "arms": arms}
        (tmp_path / name / "summary.json").write_text(json.dumps(new))
    docs = tmp_path / "docs"
    (docs / "results").mkdir(parents=True)
    (docs / "images").mkdir()
    written = 'decided = "open"\nwhy = "Because."\ntext = "It is so."'
    (docs / "results" / "verdicts.toml").write_text(f"[poc-femnist]\n{written}\n[poc-cifar10]\n{written}\n")
    monkeypatch.setattr(page, "DOCS", docs)
    page.main([str(tmp_path)])
    text = (docs / "results.md").read_text(encoding="utf-8")
    assert "It is so." in text and "| [poc-femnist](#poc-femnist): " in text and "Because. |" in text
    assert "| poc-cifar10: " in text and "not yet run" in text, "the page is about the laptop scale"
    assert f"seeds 0, 1 on {summary['made'][0]['date']} with filfl {filfl.__version__}" in text
    assert (docs / "images" / "results-poc-femnist.png").read_bytes().startswith(b"\x89PNG")
    assert page.render(page.summaries(), page.texts()) == text


def summary_of(source: Path, seeds: int, first: int, out: Path) -> dict[str, Any]:
    """The summary of a small figure, made in this process."""
    ((plan, figure),) = plan_figures([str(source)], "laptop", seeds, {"seed": first}, out)
    for run in runs_of([plan]):
        filfl.simulate(run.config, out=run.directory, progress=False)
    plan.directory.mkdir()
    report_comparison(plan, figure)
    summary: dict[str, Any] = json.loads((plan.directory / "summary.json").read_text())
    return summary


@pytest.fixture(scope="module")
def crossed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("crossed")
    (folder / "crossed.toml").write_text(CROSSED)
    return summary_of(folder / "crossed.toml", 2, 0, folder / "out")


def test_new_seeds_are_added_to_the_stored_ones_without_their_runs(page, tmp_path: Path) -> None:
    """Seeds 0 and 1, and then seeds 2 and 3 elsewhere, give what seeds 0 to 3 give at once."""
    source = tmp_path / "one.toml"
    source.write_text(BASE + "[evaluate]\ntrain_samples = 20\n" + ALONE.removeprefix(BASE))
    first, then, overlap, once = (
        summary_of(source, seeds, start, tmp_path / f"{seeds}-{start}")
        for seeds, start in ((2, 0), (2, 2), (2, 1), (4, 0))
    )
    assert then["seeds"] == then["arms"][0]["seeds"] == [2, 3] and "global-train-loss" in then["arms"][0]["measures"]
    both, notes = page.merged(first, then)
    assert both["seeds"] == [0, 1, 2, 3] and notes == [] and both["set"] == {}
    assert [made["seeds"] for made in both["made"]] == [[0, 1], [2, 3]] and once["made"][0]["seeds"] == [0, 1, 2, 3]
    assert both["made"][0]["versions"]["filfl"] == filfl.__version__ and both["made"][0]["date"]
    for mine, theirs in zip(both["arms"], once["arms"], strict=True):
        assert mine["config"] == theirs["config"] and mine["seeds"] == theirs["seeds"]
        for name, spread in theirs["measures"].items():
            assert mine["measures"][name] == {key: pytest.approx(spread[key], rel=1e-4) for key in spread}, name
        for name, curve in theirs["curves"].items():
            assert mine["curves"][name] == {key: pytest.approx(curve[key], rel=1e-2, abs=1e-3) for key in curve}
    assert page.statistics_in(both)[0].measures["accuracy"].count == 4
    partly, _ = page.merged(first, overlap)
    assert partly["seeds"] == [0, 1, 2] and [made["seeds"] for made in partly["made"]] == [[0], [1, 2]]
    assert [spread["count"] for spread in partly["arms"][0]["measures"].values()].count(3) > 5


def test_seeds_of_different_configs_are_never_mixed(page, crossed: dict[str, Any]) -> None:
    stored, new = crossed, copy.deepcopy(crossed)
    new["seeds"] = [7, 8]
    for arm in new["arms"]:
        arm["seeds"] = [7, 8]
    new["arms"][1]["config"]["filter.period"] = 2
    new["arms"][2]["arm"] = "other"
    new["arms"][2]["against"] = new["arms"][3]["against"] = "other"
    both, notes = page.merged(stored, new)
    seeds = {arm["arm"]: arm["seeds"] for arm in both["arms"]}
    assert seeds == {"none-rs": [0, 1, 7, 8], "dgf-rs": [7, 8], "other": [7, 8], "dgf-poc": [0, 1, 7, 8]}
    assert both["seeds"] == [0, 1, 7, 8]
    changed = both["arms"][1]["measures"]["accuracy"]
    assert changed["values"][:2] == [None, None] and (changed["count"], changed["of"]) == (2, 2)
    assert notes == [
        "crossed, dgf-rs: the config has changed; the stored seeds are left out",
        "crossed, none-poc: the arm does not exist any more; it is left out",
    ]
    assert both["target"] == stored["target"]
    other_target, _ = page.merged(stored, {**new, "target": 0.123})
    assert other_target["target"] is None and other_target["arms"][0]["rounds_to_target"] is None


def test_an_option_that_did_not_exist_before_has_its_default(page, crossed: dict[str, Any]) -> None:
    stored = crossed
    older = {**stored, "config": {k: v for k, v in stored["config"].items() if not k.startswith("guard.")}}
    assert len(older["config"]) < len(stored["config"])
    assert page.merged(older, stored)[1] == []
    removed = {**stored, "config": {**stored["config"], "filter.no_longer": 1}}
    assert len(page.merged(removed, stored)[1]) == len(stored["arms"])
