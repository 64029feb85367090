"""`filfl reproduce` with small figures and real worker processes; the page docs/results.md."""

import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

from filfl.comparison.figures import figure_names, paper_names, plan_figures, run_key
from filfl.config.experiment import Experiment, shipped_names
from filfl.config.figure import Expectation
from filfl.errors import ConfigError
from filfl.report.claims import check_figure
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
    assert "dgf-poc kept < 1.01" in shown and "Holds at laptop scale" in shown
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
    assert "no experiment of that name (known: approximation-cifar10" in cli("reproduce", "poc-imagenet", code=2)
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
    assert sorted(line.split()[0] for line in lines if line and not line.startswith(" ")) == sorted(NAMES + ARENA)
    at = next(i for i, line in enumerate(lines) if line.startswith("poc-femnist "))
    assert "App. E.1" in lines[at] and "min on 2 cores" in lines[at]
    assert "7 points more test accuracy" in " ".join(lines[at : at + 3])
    assert "arms: none-rs, dgf-rs, rgf-rs, none-poc, dgf-poc, rgf-poc" in " ".join(lines[at : at + 6])


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
        facts = page.section(name, stored[name], "")["facts"]
        assert ("The settings were changed after these runs" in facts) == (name in older)


def test_a_summary_is_older_if_a_setting_or_an_arm_differs(page, done: tuple[Path, str], monkeypatch) -> None:
    monkeypatch.chdir(done[0])
    summary = json.loads((done[0] / "out/crossed/summary.json").read_text())
    assert not page.is_older("crossed.toml", summary)
    assert page.is_older("crossed.toml", {**summary, "arms": summary["arms"][:-1]})
    changed = {**summary["arms"][0], "config": {"filter.name": "rgf"}}
    assert page.is_older("crossed.toml", {**summary, "arms": [changed, *summary["arms"][1:]]})


def test_results_page_separates_filter_and_selection(page) -> None:
    finals = {"none-rs": 0.5, "dgf-rs": 0.6, "rgf-rs": 0.55, "none-poc": 0.3, "dgf-poc": 0.45, "rgf-poc": 0.4}
    runs = {
        arm: [
            [{"round": 1, "test_accuracy": final + spread, "test_loss": 1.0, "num_filtered": 4, "uplink_bytes": 1}]
            for spread in (-0.01, 0.0, 0.01)
        ]
        for arm, final in finals.items()
    }
    against = {arm: f"none-{arm.partition('-')[2]}" for arm in finals}
    statistics = compare_arms(runs, against, 0.5, [1])
    rows = [line.split(" | ") for line in page.shares(statistics) if line.startswith("| ")][2:]
    assert [(row[1], row[2]) for row in rows] == [
        ("dgf-poc - none-poc", "+15.0"),
        ("rgf-poc - none-poc", "+10.0"),
        ("dgf-rs - none-rs", "+10.0"),
        ("rgf-rs - none-rs", "+5.0"),
        ("none-rs - none-poc", "+20.0"),
        ("dgf-rs - none-poc", "+30.0"),
        ("rgf-rs - none-poc", "+25.0"),
    ]
    levels = {arm: tuple(arm.split("-")) for arm in finals}
    assert "| poc | 0.300±0.010 | 0.450±0.010 | 0.400±0.010 |" in page.pivot(statistics, levels, "accuracy")


def test_new_results_are_added_to_the_page(page, done: tuple[Path, str], tmp_path: Path, monkeypatch) -> None:
    summary = json.loads((done[0] / "out/crossed/summary.json").read_text())
    for name, scale in (("poc-femnist", "laptop"), ("poc-cifar10", "paper")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "summary.json").write_text(json.dumps({**summary, "name": name, "scale": scale}))
    docs = tmp_path / "docs"
    (docs / "results").mkdir(parents=True)
    (docs / "images").mkdir()
    (docs / "results" / "verdicts.toml").write_text('poc-femnist = "It is so."\npoc-cifar10 = ""\n')
    monkeypatch.setattr(page, "DOCS", docs)
    page.main([str(tmp_path)])
    text = (docs / "results.md").read_text(encoding="utf-8")
    assert "It is so." in text and "| [poc-femnist](#poc-femnist) |" in text
    assert "Not yet run: `filfl reproduce poc-cifar10`" in text, "the page is about the laptop scale"
    assert (docs / "images" / "results-poc-femnist.png").read_bytes().startswith(b"\x89PNG")
    assert page.render(page.summaries(), page.texts()) == text
