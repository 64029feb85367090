"""The report's data: exact words and maps on small records, and stores that are cut off, damaged or of old versions."""

import itertools
import json
import re
import shutil
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from matplotlib.figure import Figure

from filfl.errors import RunError
from filfl.report.cells import measure, measures_table
from filfl.report.collect import ArmRuns, Section, collect
from filfl.report.figures import name_points
from filfl.report.html import render, report_data, to_script
from filfl.report.presence import presence, traces
from filfl.report.settings import settings
from filfl.report.stored import StoredRun, normal, read_stored
from filfl.report.verdict import verdict
from filfl.runs.registered import Registered

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A comparison of three arms with two seeds, 12 rounds of 10 clients."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    from report_store import Size, write_comparison

    return write_comparison(tmp_path / "c", Size(seeds=2, rounds=12, clients=10, available=6, k=2, period=3))


def record(t: int, accuracy: float | None = None, **more: Any) -> dict[str, Any]:
    return normal({"round": t, "test_accuracy": accuracy, "test_loss": accuracy, "uplink_bytes": 2_000_000, **more})


def stored(name: str, records: list[dict[str, Any]], seed: int = 0, noisy: tuple[bool, ...] = ()) -> StoredRun:
    clients = None
    if noisy:
        names = np.array([f"c{k}" for k in range(len(noisy))])
        clients = Registered(
            names, np.full(len(noisy), 7), np.array(["random labels" if bad else "" for bad in noisy], dtype=object)
        )
    table = {"name": name, "seed": seed, "rounds": len(records), "filter": {"name": name}}
    return StoredRun(Path(name), table, records, clients=clients, summary={})


def section(**accuracies: list[list[float]]) -> Section:
    """Arms with the accuracies of each seed, all tested against the first."""
    first = next(iter(accuracies))
    arms = [
        ArmRuns(
            name,
            first,
            tuple(
                stored(name, [record(t, value) for t, value in enumerate(values, start=1)], seed)
                for seed, values in enumerate(seeds)
            ),
        )
        for name, seeds in accuracies.items()
    ]
    return Section("title", Path("place"), tuple(range(len(arms[0].runs))), tuple(arms), target=0.5)


def said(made: Section) -> str:
    return verdict(made, measure(made))["sentence"]


def test_the_headline_says_who_won_by_how_much_and_at_what_cost() -> None:
    # Finals are means over both rounds: 0.50, 0.52 against 0.60, 0.62, so t = 0.1 / 0.01414 = 7.07 with 2 degrees.
    made = section(plain=[[0.4, 0.6], [0.42, 0.62]], clever=[[0.5, 0.7], [0.52, 0.72]])
    assert said(made) == (
        "clever wins with 61.0 ± 1.4 % final accuracy (2 seeds), 10.0 points above plain (p = 0.0194). "
        "It reaches 50 % after 1 round and 2.00 MB of upload; plain after 2 rounds and 4.00 MB."
    )
    tiles = verdict(made, measure(made))["tiles"]
    assert [tile["value"] for tile in tiles] == ["clever", "+10.0 points", "2.00 MB"]


def test_the_headline_is_honest() -> None:
    chance = section(plain=[[0.40], [0.60]], clever=[[0.45], [0.61]])
    assert "clever is ahead" in said(chance) and "which may be chance (p = 0.8" in said(chance)
    baseline = section(plain=[[0.60], [0.62]], clever=[[0.40], [0.41]])
    assert said(baseline).startswith("plain wins with 61.0 ± 1.4 %") and "20.5 points above clever" in said(baseline)
    assert "clever never does" in said(baseline)
    partly = section(plain=[[0.60], [0.62]], clever=[[0.40], [0.51]])
    assert "clever after 1 round (in 1 of 2 seeds)" in said(partly)
    assert "no test says whether by chance" in said(section(plain=[[0.4]], clever=[[0.6]]))
    assert said(section(alone=[[0.4]])) == "alone comes to 40.0 % final accuracy (1 seed)."
    assert said(section(untested=[[None]])) == "No round has been tested yet."


def test_a_run_that_goes_on_is_no_matter_for_a_test() -> None:
    made = section(plain=[[0.4], [0.42]], clever=[[0.6], [0.62]])
    going = stored("clever", [record(1, 0.6)], 1)
    going = StoredRun(going.directory, {**going.table, "rounds": 9}, going.records, summary=None)
    clever = ArmRuns("clever", "plain", (made.arms[1].runs[0], going))
    made = Section("title", Path("place"), (0, 1), (made.arms[0], clever), target=0.5)
    assert not measure(made).arms["clever"].tests
    assert said(made).startswith("So far, with 3 of 4 runs finished: clever is ahead")


def test_measures_leave_out_what_nobody_has() -> None:
    made = section(plain=[[0.4], [0.42]], clever=[[0.6], [0.62]])
    table = measures_table(made, measure(made))
    headings = [label for label, _ in table["headings"]]
    row = dict(zip(headings, table["rows"][1], strict=True))
    assert row["final accuracy"] == (pytest.approx(0.61), "61.0 ± 1.4 %")
    assert row["difference"] == (pytest.approx(0.2), "+20.0 to plain")
    assert dict(zip(headings, table["rows"][0], strict=True))["rounds to 50 %"] == (None, "never")
    assert "worst tenth" not in headings


def test_the_map_and_the_counts_of_a_run_worked_out_by_hand() -> None:
    records = [
        record(1, did_filter=True, available=[0, 1, 2], considered=[2, 0], filtered=[0], selected=[0]),
        record(2, available=[0, 2, 3], filtered=[0], selected=[0], refused={"0": "not finite"}),
        record(3, did_filter=True, available=[1, 2, 3], considered=[1, 2, 3], filtered=[1, 2], selected=[2]),
    ]
    found = presence(stored("dgf", records, noisy=(False, True, False, False)))
    #        round  1: judged, kept and chosen; 2: chosen but refused; 3: away
    assert found["map"][0] == "450"
    assert found["map"][1] == "103", "available beyond the cap is not judged; away; kept"
    assert found["map"][2] == "224", "filtered out, and still so in a round without a filtering; then chosen"
    assert found["map"][3] == "012", "a newcomer is not judged before the next filtering"
    assert (found["considered"], found["kept"]) == ([1, 1, 2, 1], [1, 1, 1, 0])
    assert (found["available"], found["selected"]) == ([2, 2, 3, 2], [2, 0, 1, 0])
    assert (found["refused"], found["why"]) == ([1, 0, 0, 0], {"0": "not finite"})
    assert (found["names"], found["fault"]) == (["c0", "c1", "c2", "c3"], ["", "random labels", "", ""])


def test_without_a_filter_whoever_is_available_may_be_chosen() -> None:
    records = [
        record(1, available=None, num_available=3, selected=[1]),
        record(2, available=None, num_available=2, selected=[2]),
    ]
    found = presence(stored("none", records, noisy=(False,) * 3))
    assert found["map"] == ["30", "40", "34"], "everybody, though not listed; then nobody knows who"
    assert found["available"] is None


@given(st.data())
def test_the_map_agrees_with_the_counts(data: st.DataObject) -> None:
    ids = st.lists(st.integers(0, 7), unique=True).map(sorted)
    records = []
    for t in range(1, data.draw(st.integers(1, 8)) + 1):
        here = data.draw(ids)
        part = st.lists(st.sampled_from(here), unique=True) if here else st.just([])
        considered = data.draw(part)
        kept = [k for k in considered if data.draw(st.booleans())]
        pool = kept or here
        chosen = data.draw(st.lists(st.sampled_from(pool), unique=True)) if pool else []
        did_filter = bool(considered)
        records.append(
            record(
                t, available=here, considered=considered, did_filter=did_filter, filtered=sorted(kept), selected=chosen
            )
        )
    found = presence(stored("any", records, noisy=(False,) * 8))
    for k, row in enumerate(found["map"]):
        assert len(row) == len(records)
        assert len(row) - row.count("0") == found["available"][k]
        assert row.count("4") == found["selected"][k]
        assert found["kept"][k] <= found["considered"][k] <= found["available"][k]


def test_of_very_many_clients_the_most_involved_are_shown() -> None:
    records = [record(1, available=None, num_available=3000, selected=[2999, 5])]
    found = presence(stored("none", records, noisy=(False,) * 3000))
    assert (found["of"], len(found["ids"])) == (3000, 1000)
    assert {5, 2999} <= set(found["ids"]) and found["ids"] == sorted(found["ids"])
    assert found["map"][found["ids"].index(2999)] == "4"


def test_a_large_report_can_be_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    import report
    from report_store import Size

    monkeypatch.setattr(report, "in_browser", lambda path: {})  # test_report_page.py has the browser
    found = report.measure(tmp_path, Size(seeds=1, rounds=40, clients=30, available=20, k=2))
    library = (resources.files("filfl") / "report" / "page" / "echarts.min.js").read_bytes()
    # 3 runs: 40 x 30 cells of a byte each, and less than 30 bytes a decision; the rest is the page itself
    assert 1e6 * found["megabytes"] - len(library) < 3 * (40 * 30 + 8 * 20 * 30) + 80_000


def test_traces_keep_to_their_budget() -> None:
    step = {"client": 3, "a": 0.123456, "b": None, "p": 1.0, "kept": True}
    records = [record(t, trace=[step, {**step, "client": 1, "kept": False}], reward_all=7.0) for t in range(1, 11)]
    whole, part = traces(stored("dgf", records), 20), traces(stored("dgf", records), 7)
    assert whole[0] == [1, 7.0, None, (3, 1), [0.1235, 0.1235], [None, None], [1.0, 1.0], "10"]
    assert [found[0] for found in whole] == list(range(1, 11)) and [found[0] for found in part] == [1, 4, 7, 10]


def test_arms_are_told_apart_by_what_differs() -> None:
    made = settings(section(none=[[0.4]], dgf=[[0.6]]))
    assert made == {"shared": [("rounds", "1")], "differing": [["filter.name", ['"none"', '"dgf"']]]}


# Finding what to show


def test_a_comparison_is_a_section(store: Path) -> None:
    (found,) = collect([store], read_stored)
    assert (found.title, found.seeds, found.finished) == ("c", (0, 1), True)
    assert [(arm.name, arm.against, len(arm.begun)) for arm in found.arms] == [
        ("fedavg", "fedavg", 2),
        ("filfl-dgf", "fedavg", 2),
        ("filfl-rgf", "fedavg", 2),
    ]


def test_a_reproduction_names_its_runs(store: Path, tmp_path: Path) -> None:
    place = tmp_path / "all" / "figure-3"
    place.mkdir(parents=True)
    shutil.move(store / "fedavg" / "seed-0", tmp_path / "all" / "runs" / "ab12")
    plan = {
        "title": "Figure 3",
        "target": 0.25,
        "seeds": [0, 1],
        "arms": {"none": {"filter.name": "none"}},
        "runs": {"none": ["../runs/ab12", "../runs/gone"]},
    }
    (place / "comparison.toml").write_text(tomli_w.dumps(plan))
    (found,) = collect([tmp_path / "all"], read_stored)
    assert (found.title, found.target, found.missing, found.finished) == ("Figure 3", 0.25, 1, False)
    assert found.arms[0].runs[0].name == "fedavg" and found.arms[0].runs[1] is None
    problems = report_data([found])["sections"][0]["problems"]
    assert problems == ["1 run not begun."], "and the run is not shown once more by itself"


def test_single_runs_are_compared_with_the_one_without_a_filter(store: Path, tmp_path: Path) -> None:
    loose = tmp_path / "loose"
    for name in ("filfl-dgf", "fedavg"):
        for seed in (0, 1):
            shutil.copytree(store / name / f"seed-{seed}", loose / f"{name}{seed}")
    (found,) = collect([loose], read_stored)
    assert found.title == "4 runs on digits"
    assert [(arm.name, arm.against, len(arm.begun)) for arm in found.arms] == [
        ("fedavg", "fedavg", 2),
        ("filfl-dgf", "fedavg", 2),
    ]
    shutil.copytree(loose / "fedavg0", loose / "again")
    (found,) = collect([loose / "again", loose / "fedavg0"], read_stored)
    assert [arm.name for arm in found.arms] == ["again", "fedavg0"], "the same name and seed twice: by directory"
    for name in ("one", "two"):
        shutil.copytree(loose / "again", tmp_path / "deep" / name / "seed-0")
    (found,) = collect([tmp_path / "deep"], read_stored)
    assert [arm.name for arm in found.arms] == ["one", "two"], "by the part of the path that differs"


def test_a_folder_and_a_part_of_it_show_nothing_twice(store: Path) -> None:
    assert len(collect([store.parent, store], read_stored)) == 1


def test_a_comparison_without_a_plan_is_read_from_its_runs(store: Path) -> None:
    (store / "comparison.toml").write_text("seeds = [0,")
    (found,) = collect([store], read_stored)
    assert [arm.name for arm in found.arms] == ["fedavg", "filfl-dgf", "filfl-rgf"]
    assert "comparison.toml is damaged" in report_data([found])["sections"][0]["problems"][0]


def test_nothing_to_show_is_said(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="nowhere does not exist: give the directory of a run"):
        collect([tmp_path / "nowhere"], read_stored)
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="is a file, not a directory"):
        collect([tmp_path / "file"], read_stored)
    assert collect([tmp_path], read_stored) == []


# Stores that are not whole


@given(share=st.floats(0, 1))
def test_a_run_cut_off_anywhere_shows_what_is_there(share: float, tmp_path_factory: pytest.TempPathFactory) -> None:
    lines = [json.dumps({"round": t, "test_accuracy": t / 10}).encode() + b"\n" for t in range(1, 6)]
    whole = b"".join(lines)
    place = tmp_path_factory.mktemp("cut")
    (place / "config.toml").write_text('name = "cut"\nrounds = 5\n')
    (place / "rounds.jsonl").write_bytes(whole[: round(share * len(whole))])
    run = read_stored(place)
    there = (place / "rounds.jsonl").read_bytes().count(b"\n")
    assert [found["round"] for found in run.records] == list(range(1, there + 1))
    assert not any("rounds.jsonl" in problem for problem in run.problems), "a line that is being written is no damage"
    assert "cut" in render(report_data(collect([place], read_stored)))


@pytest.mark.parametrize(
    "line", ["rubbish", "[]", "7", '{"round": "two"}', '{"round": 2, "selected": [-1]}', '{"round": 2, "trace": [{}]}']
)
def test_damage_in_the_middle_ends_the_records_with_a_word(store: Path, line: str) -> None:
    path = store / "filfl-dgf" / "seed-0" / "rounds.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:4], line, *lines[5:]]) + "\n")
    run = read_stored(path.parent)
    assert len(run.records) == 4
    assert run.problems == ("rounds.jsonl is damaged after round 4: what follows is left out",)
    (shown,) = report_data(collect([store], read_stored))["sections"]
    assert any("seed-0: rounds.jsonl is damaged after round 4" in problem for problem in shown["problems"])
    assert any("filfl-dgf seed 0 (4 of 12 rounds)" in problem for problem in shown["problems"])


def test_a_run_with_nothing_but_a_broken_config_is_shown_as_such(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("name = ")
    data = report_data(collect([tmp_path], read_stored))
    (shown,) = data["sections"]
    assert shown["verdict"]["sentence"] == "No round has been tested yet."
    assert any("config.toml is damaged" in problem for problem in shown["problems"])
    assert json.loads(to_script(data)) == json.loads(json.dumps(data))


def test_a_run_of_another_version_is_read_as_far_as_it_is_known(store: Path) -> None:
    place = store / "filfl-rgf" / "seed-1"
    (place / "clients.csv").unlink()
    table = (place / "config.toml").read_text()
    (place / "config.toml").write_text(table.replace("rounds =", 'unheard_of = "yes"\nrounds ='))
    old = []
    for line in (place / "rounds.jsonl").read_text().splitlines():
        record = json.loads(line)
        for new in ("num_available", "num_filtered", "judges", "metrics", "reward_all"):
            del record[new]
        old.append(json.dumps({**record, "unknown": {"to": "us"}}) + "\n")
    (place / "rounds.jsonl").write_text("".join(old))
    run = read_stored(place)
    assert len(run.records) == 12 and run.table["unheard_of"] == "yes"
    assert run.records[0]["num_filtered"] == len(run.records[0]["filtered"])
    found = presence(run)
    assert found["sizes"] is None and found["names"] == [str(k) for k in found["ids"]]
    assert "clients.csv is missing, damaged or of another version" in run.problems[0]


# The page


def test_the_page_needs_nothing_and_nothing_breaks_out_of_it(store: Path) -> None:
    path = store / "summary.json"
    path.write_text(json.dumps({"title": "</script><script>alert(1)</script> & {{data}}"}))
    page = render(report_data(collect([store], read_stored)))
    assert "</script><script>alert" not in page
    assert len(re.findall("</script", page)) == 4
    library = (resources.files("filfl") / "report" / "page" / "echarts.min.js").read_text(encoding="utf-8")
    assert library in page
    assert not re.search(r'(?:src|href)\s*=\s*"(?!data:)', page.replace(library, "")), "nothing is loaded"
    inside = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL).group(1)
    assert json.loads(inside)["sections"][0]["title"] == "</script><script>alert(1)</script> & {{data}}"
    assert "Apache" in page


@examples(max_examples=20, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from([50.0, 51.0, 60.0, 170.0]), st.sampled_from([0.60, 0.605, 0.7])), max_size=13)
)
def test_names_in_a_picture_hide_neither_each_other_nor_points(points: list[tuple[float, float]]) -> None:
    figure = Figure(figsize=(6.4, 4.8))
    axis = figure.subplots()
    axis.set(xlim=(40, 200), ylim=(0.55, 0.75), xscale="log")
    name_points(axis, {f"filter-{i}": point for i, point in enumerate(points)})
    names = [label.get_window_extent() for label in axis.texts if label.get_text()]
    assert len(names) == len(points)
    assert not any(a.overlaps(b) for a, b in itertools.combinations(names, 2))
    assert not any(name.contains(x, y) for name in names for x, y in axis.transData.transform(points or [(50, 0.6)]))
