"""The data of the HTML report: exact texts and maps of small records, and damaged or cut-off run directories."""

import itertools
import json
import os
import re
import shutil
import tomllib
from collections.abc import Callable
from dataclasses import replace
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
from rich.console import Console

from filfl.commands import terminal
from filfl.commands.clients import clients_command
from filfl.errors import RunError
from filfl.report.formatting import MINUS, NONE
from filfl.report.html.clients import client_map, client_values, decisions
from filfl.report.html.collect import ArmRuns, Section, collect
from filfl.report.html.events import events
from filfl.report.html.headline import filtering_set_warnings, headline, measure
from filfl.report.html.render import render, report_data, to_script
from filfl.report.html.standing import settings
from filfl.report.plots import label_points
from filfl.report.series import CURVES, Series, series_of
from filfl.report.table import comparison_table, page_row
from filfl.report.values import NOT_MEASURED, hurting_sentence
from filfl.runs.client_table import NOT_SEEN, ClientTable
from filfl.runs.clients import client_rows
from filfl.runs.reader import Run, is_record, read_finished_run, read_run, scan_run
from sealed import reseal

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A comparison of three arms with two seeds, 12 rounds of 10 clients."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    from report_store import Size, write_comparison

    return write_comparison(tmp_path / "c", Size(seeds=2, rounds=12, clients=10, available=6, k=2, period=3))


def record(t: int, accuracy: float | None = None, **more: Any) -> dict[str, Any]:
    """A record of a round without a filter, with changes."""
    available = more.get("available")
    made = {
        "round": t,
        "did_filter": False,
        "available": None,
        "num_available": len(available or ()),
        "considered": [],
        "filtered": None,
        "num_filtered": len(more.get("filtered", available) or ()),
        "selected": [],
        "refused": {},
        "selected_train_loss": None,
        "test_accuracy": accuracy,
        "test_loss": accuracy,
        "metrics": {},
        "uplink_bytes": 2_000_000,
        "downlink_bytes": 0,
        "evaluations": 0,
        "reward_all": None,
        "reward_optimum": None,
        "surrogate_all": None,
        "surrogate_filtered": None,
        "reward_filtered": None,
        "trace": [],
        "notes": [],
        "values": [],
        "honest_gain": None,
        "honest_gain_stderr": None,
        **more,
    }
    assert is_record(made)
    return made


def stored(name: str, records: list[dict[str, Any]], seed: int = 0, noisy: tuple[bool, ...] = ()) -> Run:
    clients = None
    if noisy:
        names = np.array([f"c{k}" for k in range(len(noisy))])
        clients = ClientTable(
            names,
            np.full(len(noisy), 7),
            np.array(["random labels" if bad else "" for bad in noisy], dtype=object),
            np.zeros(len(noisy), dtype=bool),
        )
    table = {"name": name, "seed": seed, "rounds": len(records), "filter": {"name": name}}
    return Run(Path(name), table, records, clients=clients, summary={})


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


def sentence(made: Section) -> str:
    return headline(made, *measure(made))["sentence"]


def test_headline_names_winner_difference_and_cost() -> None:
    # Finals are means over both rounds: 0.50, 0.52 against 0.60, 0.62, so t = 0.1 / 0.01414 = 7.07 with 2 degrees.
    made = section(plain=[[0.4, 0.6], [0.42, 0.62]], clever=[[0.5, 0.7], [0.52, 0.72]])
    assert sentence(made) == (
        "clever has the highest final accuracy: 61.0 ± 1.4 % (2 seeds), 10.0 points above plain (p = 0.0194). "
        "It reaches 50 % after 1 round and 2.00 MB of upload; plain after 2 rounds and 4.00 MB."
    )
    tiles = headline(made, *measure(made))["tiles"]
    assert [tile["value"] for tile in tiles] == ["clever", "+10.0 points", "2.00 MB"]


def test_headline_reports_chance_and_missing_tests() -> None:
    chance = section(plain=[[0.40], [0.60]], clever=[[0.45], [0.61]])
    assert "clever has the highest" in sentence(chance) and "which may be chance (p = 0.8" in sentence(chance)
    baseline = section(plain=[[0.60], [0.62]], clever=[[0.40], [0.41]])
    assert sentence(baseline).startswith(
        "plain has the highest final accuracy: 61.0 ± 1.4 %"
    ) and "20.5 points above clever" in sentence(baseline)
    assert "clever never does" in sentence(baseline)
    partly = section(plain=[[0.60], [0.62]], clever=[[0.40], [0.51]])
    assert "clever after 1 round (in 1 of 2 seeds)" in sentence(partly)
    assert "above plain; one seed cannot exclude chance." in sentence(section(plain=[[0.4]], clever=[[0.6]]))
    assert sentence(section(alone=[[0.4]])) == "alone reaches 40.0 % final accuracy (1 seed)."
    assert sentence(section(untested=[[None]])) == "No round has been tested yet."


def test_unfinished_runs_are_not_tested() -> None:
    made = section(plain=[[0.4], [0.42]], clever=[[0.6], [0.62]])
    unfinished = stored("clever", [record(1, 0.6)], 1)
    unfinished = Run(unfinished.directory, {**unfinished.table, "rounds": 9}, unfinished.records, summary=None)
    clever = ArmRuns("clever", "plain", (made.arms[1].runs[0], unfinished))
    made = Section("title", Path("place"), (0, 1), (made.arms[0], clever), target=0.5)
    assert not measure(made)[0][1].tests
    assert sentence(made) == (
        "3 of 4 runs are finished, so there is no verdict yet. In round 1, the latest one that all runs have, the test "
        "accuracy is plain 41.0 ± 1.4 %; clever 60.0 ± 0.0 %."
    )


def changed(made: Section, arm: int, **table: Any) -> Section:
    """The section with other settings in the runs of one arm."""
    runs = [replace(run, table={**run.table, **table}) for run in made.arms[arm].runs if run is not None]
    arms = list(made.arms)
    arms[arm] = replace(arms[arm], runs=tuple(runs))
    return replace(made, arms=tuple(arms))


def test_equal_numbers_are_a_tie() -> None:
    made = section(plain=[[0.3291], [0.3289]], clever=[[0.3290], [0.3294]], worse=[[0.1], [0.2]])
    shown = headline(made, *measure(made))
    assert shown["sentence"] == "plain and clever tie: the highest final accuracy is 32.9 % for each (2 seeds)."
    assert [(tile["value"], tile["detail"]) for tile in shown["tiles"]] == [("32.9 %", "a tie: plain and clever")]
    better = section(plain=[[0.3291], [0.3289]], clever=[[0.3390], [0.3394]])
    assert sentence(better).startswith(
        "clever has the highest final accuracy: 33.9 ± 0.0 % (2 seeds), 1.0 points above"
    )
    assert page_row(*measure(made)[0][1::-1])["difference"][1] == "0.0 to plain"


def test_runs_of_different_lengths_are_not_ranked() -> None:
    made = replace(section(plain=[[0.4, 0.5]], clever=[[0.6, 0.7, 0.8]]), target=None)
    assert sentence(made) == (
        "The methods have different numbers of rounds (plain: 2, clever: 3), so their final values are not ranked. "
        "In round 2, the latest one that all runs have, the test accuracy is plain 50.0 %; clever 70.0 %."
    )
    (shown,) = report_data([made])["sections"]
    assert not shown["ranked"] and shown["target"] is None and shown["headline"]["tiles"] == []
    assert [row["difference"] for row in shown["measures"]] == 2 * [(None, NONE)]


def test_runs_that_stopped_early_are_ranked_with_their_lengths() -> None:
    made = section(plain=[[0.4, 0.5]], clever=[[0.6]])
    (run,) = made.arms[1].runs
    stopped = replace(run, table={**run.table, "rounds": 2}, summary={"stopped": "no progress"})
    made = replace(made, arms=(made.arms[0], replace(made.arms[1], runs=(stopped,))))
    shown = headline(made, *measure(made))
    assert shown["sentence"].startswith("clever has the highest final accuracy")
    assert shown["more"] == ["Runs stopped early, so they have different lengths: 1 to 2 rounds."]


def test_methods_with_different_tasks_are_ranked_only_among_those_with_the_same_task() -> None:
    made = section(plain=[[0.4]], clever=[[0.6]], clean=[[0.9]])
    made = changed(made, 2, data={"name": "digits", "noisy": 0.0})
    made = replace(made, arms=(*made.arms[:2], replace(made.arms[2], against="clean")))
    for arm in (0, 1):
        made = changed(made, arm, data={"name": "digits", "noisy": 0.3})
    shown = headline(made, *measure(made))
    assert shown["sentence"] == "The methods have different tasks (data.noisy), so they are not ranked together."
    assert shown["more"] == [
        "Among those tested against plain: clever has the highest final accuracy: 60.0 % (1 seed), 20.0 points above "
        "plain; one seed cannot exclude chance."
    ]
    assert shown["tiles"] == []


def test_runs_that_were_not_planned_together_name_their_differences() -> None:
    made = replace(section(plain=[[0.4], [0.5]], clever=[[0.6], [0.7]]), planned=False)
    made = replace(made, arms=(made.arms[0], replace(made.arms[1], runs=(made.arms[1].runs[0], None))))
    assert headline(made, *measure(made))["more"] == [
        "These runs were not made by one comparison; they differ in filter.name.",
        "They have different seeds (plain 0, 1, clever 0).",
    ]


def test_a_single_method_is_not_the_best_and_has_no_target() -> None:
    made = replace(section(alone=[[0.4, 0.6]]), target=None)
    shown = headline(made, *measure(made))
    assert shown["sentence"] == "alone reaches 50.0 % final accuracy (1 seed)." and shown["more"] == []
    assert [(tile["label"], tile["value"]) for tile in shown["tiles"]] == [("Final accuracy", "50.0 %")]
    assert measure(made)[1] is None
    unfinished = replace(made.arms[0].runs[0], table={**made.arms[0].runs[0].table, "rounds": 9}, summary=None)
    made = replace(made, arms=(replace(made.arms[0], runs=(unfinished,)),))
    shown = headline(made, *measure(made))
    assert shown["sentence"] == (
        "The run is not finished. In round 2, the latest one tested, the test accuracy is 60.0 %."
    )
    assert [(tile["label"], tile["value"]) for tile in shown["tiles"]] == [("Not finished", "2 of 9 rounds")]


def test_targets_are_explained_and_only_shown_where_they_apply() -> None:
    given = section(plain=[[0.4]], clever=[[0.6]])
    automatic = replace(given, target=None)
    assert headline(given, *measure(given))["more"] == []
    assert headline(automatic, *measure(automatic))["more"] == [
        "Target 54 %: set automatically, a tenth worse than the best final accuracy."
    ]
    missed = replace(given, target=0.95)
    shown = headline(missed, *measure(missed))
    assert shown["sentence"].endswith("No method reaches the target of 95 %.") and len(shown["tiles"]) == 2
    table = comparison_table("title", *measure(missed), 1)
    assert not any("to 0.95" in heading for heading in table.columns)
    assert "No arm reached the target accuracy 0.95." in table.caption
    table = comparison_table("title", *measure(automatic), 1, automatic=True)
    assert table.columns["rounds\nto 0.54"] == ["never", "1"]
    assert "to the target accuracy, a tenth worse than the best final one:" in table.caption
    assert "target" not in comparison_table("title", *measure(replace(section(alone=[[0.4]]), target=None)), 1).caption


def test_results_on_the_data_of_nodes_are_not_called_test_results() -> None:
    def by(who: str) -> dict[str, Any]:
        run = stored("flower", [record(1, 0.6, tested_by=who)])
        made = Section("title", Path("place"), (0,), (ArmRuns("flower", "flower", (run,)),))
        return report_data([made])["sections"][0]

    shown = by("nodes")
    assert shown["headline"]["sentence"] == "flower reaches 60.0 % final accuracy on the nodes' own data (1 seed)."
    assert shown["headline"]["more"][-1].startswith("There is no separate test set: nodes evaluated the model on")
    assert shown["where"] == " on the nodes' own data"
    assert by("server")["where"] == " by the server's evaluate function"


def test_a_loss_on_the_data_of_nodes_is_not_called_a_test_loss() -> None:
    def arm(name: str, loss: float) -> ArmRuns:
        return ArmRuns(name, "plain", (stored(name, [record(1, None, test_loss=loss, tested_by="nodes")]),))

    (shown,) = report_data([Section("title", Path("place"), (0,), (arm("plain", 0.5), arm("clever", 0.4)))])["sections"]
    assert shown["headline"]["sentence"].startswith(
        "clever has the lowest final loss on the nodes' own data: 0.400 (1 seed), 0.1 below plain; one seed cannot "
        "exclude chance. It reaches loss 0.44 after 1 round"
    )
    assert "test loss" not in str((shown["headline"], shown["primary"]))


def test_the_accuracy_on_the_test_samples_of_each_client() -> None:
    run = stored("plain", [record(1, 0.5, available=[0, 1, 2])], noisy=(False,) * 3)
    assert client_map(run)["accuracy"] is None
    tests = {"id": [0, 2], "samples": [4, 3], "accuracy": [0.25, 1.0]}
    found = client_map(replace(run, summary={"client_tests": tests}))
    assert (found["accuracy"], found["tests"]) == ([0.25, None, 1.0], [4, None, 3])


def test_table_of_measures() -> None:
    statistics, _ = measure(section(plain=[[0.4], [0.42]], clever=[[0.6], [0.62]]))
    plain, clever = (page_row(arm, statistics[0]) for arm in statistics)
    assert clever["accuracy"] == (pytest.approx(0.61), "61.0 ± 1.4 %")
    assert clever["difference"] == (pytest.approx(0.2), "+20.0 to plain")
    assert clever["rounds-to-target"] == (1, "1") and clever["uplink-to-target"] == (2e6, "2.00 MB")
    assert plain["rounds-to-target"] == (None, "never")
    assert plain["difference"] == plain["welch-p"] == plain["worst-tenth"] == (None, NONE)


def test_client_map_and_counts_by_hand() -> None:
    records = [
        record(1, did_filter=True, available=[0, 1, 2], considered=[2, 0], filtered=[0], selected=[0]),
        record(2, available=[0, 2, 3], filtered=[0], selected=[0], refused={"0": "not finite"}),
        record(3, did_filter=True, available=[1, 2, 3], considered=[1, 2, 3], filtered=[1, 2], selected=[2]),
    ]
    found = client_map(stored("dgf", records, noisy=(False, True, False, False)))
    # round 1: considered, kept and selected; round 2: selected but refused; round 3: away
    assert found["map"][0] == "450"
    assert found["map"][1] == "103", "available beyond the cap and not considered; away; kept"
    assert found["map"][2] == "224", "filtered out, also in the next round, which does not filter; then selected"
    assert found["map"][3] == "012", "a new client is not considered before the next filter round"
    assert (found["considered"], found["kept"]) == ([1, 1, 2, 1], [1, 1, 1, 0])
    assert (found["available"], found["selected"]) == ([2, 2, 3, 2], [2, 0, 1, 0])
    assert found["refused"] == [1, 0, 0, 0]
    assert (found["names"], found["fault"]) == (["c0", "c1", "c2", "c3"], ["", "random labels", "", ""])


def test_all_refusals_and_notes_are_listed() -> None:
    far = "the norm of the update is {}, more than 100 times the median"
    records = [
        record(1, refused={"1": "not finite", "2": far.format(7.5)}, notes=["waiting"]),
        record(2, refused={"1": "timeout: no reply within 5 s"}),
        record(
            3,
            refused={"2": far.format("8e+30")},
            notes=["waiting", "dropped a reply from node 17", "dropped a reply from node 18"],
        ),
    ]
    assert events(stored("dgf", records, noisy=4 * (False,))) == [
        [1, "c1", "not finite", 1, 1, 1],
        [2, "c2", far.format("8e+30"), 2, 1, 3],
        [None, "", "waiting", 2, 1, 3],
        [1, "c1", "timeout: no reply within 5 s", 1, 2, 2],
        [None, "", "dropped a reply from node 17", 1, 3, 3],
        [None, "", "dropped a reply from node 18", 1, 3, 3],
    ]


def test_numbers_without_a_node_are_no_clients() -> None:
    names = np.array(["site0", NOT_SEEN, "site2", NOT_SEEN])
    table = ClientTable(names, np.array([5, 0, 0, 7]), np.full(4, "", dtype=object), np.zeros(4, dtype=bool))
    assert table.seen() == [0, 2, 3], "a node may have this name"


def test_without_a_filter_every_available_client_may_be_selected() -> None:
    records = [
        record(1, available=None, num_available=3, selected=[1]),
        record(2, available=None, num_available=2, selected=[2]),
    ]
    found = client_map(stored("none", records, noisy=(False,) * 3))
    assert found["map"] == ["30", "40", "34"], "all clients, though not listed; then unknown clients"
    assert found["available"] is None


@given(st.data())
def test_client_map_agrees_with_counts(data: st.DataObject) -> None:
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
    found = client_map(stored("any", records, noisy=(False,) * 8))
    for k, row in enumerate(found["map"]):
        assert len(row) == len(records)
        assert len(row) - row.count("0") == found["available"][k]
        assert row.count("4") == found["selected"][k]
        assert found["kept"][k] <= found["considered"][k] <= found["available"][k]


def test_unknown_clients_and_pools_do_not_stop_the_report() -> None:
    joined_later = record(1, did_filter=True, available=[0, 1, 5], considered=[5, 1], filtered=[1, 5], selected=[5])
    not_listed = record(2, available=None, num_available=2, selected=[1])
    run = stored("dgf", [joined_later, not_listed], noisy=(False, True, False))
    damaged = Run(run.directory, {}, run.records, clients=run.clients)
    invalid = Run(run.directory, {"rounds": -1}, run.records, clients=run.clients)
    for shown in (damaged, invalid):
        assert shown.may_be_chosen(not_listed).tolist() == [], "without a config, S_t cannot be computed again"
        assert series_of(CURVES["noisy"], [shown]) == Series((1,), (100.0,), (0.0,)), "of clients 1 and 5, 1 is known"
        arm = ArmRuns("dgf", "dgf", (shown,))
        (made,) = report_data([Section("title", Path("place"), (0,), (arm,))])["sections"]
        assert made["runs"][0]["clients"]["map"] == ["10", "34", "00"]


def test_map_of_many_clients_shows_the_most_active() -> None:
    records = [record(1, available=None, num_available=3000, selected=[2999, 5])]
    found = client_map(stored("none", records, noisy=(False,) * 3000))
    assert (found["of"], len(found["ids"])) == (3000, 1000)
    assert {5, 2999} <= set(found["ids"]) and found["ids"] == sorted(found["ids"])
    assert found["map"][found["ids"].index(2999)] == "4"


def test_report_size_is_bounded_by_cells_and_decisions(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    import report
    from report_store import Size

    monkeypatch.setattr(report, "in_browser", lambda path: {})  # test_report_page.py has the browser
    found = report.measure(tmp_path, Size(seeds=1, rounds=40, clients=30, available=20, k=2))
    library = (resources.files("filfl.report.html") / "page" / "echarts.min.js").read_bytes()
    # 3 runs: 40 x 30 cells of a byte each, less than 30 bytes per decision and 60 per value, and a row per client; the
    # rest is the page itself
    assert 1e6 * found["megabytes"] - len(library) < 3 * (40 * 30 + 8 * 20 * (30 + 60) + 30 * 200) + 90_000


def test_decisions_are_limited_by_omitting_filter_rounds_evenly() -> None:
    step = {"client": 3, "a": 0.123456, "b": None, "p": 1.0, "kept": True}
    records = [record(t, trace=[step, {**step, "client": 1, "kept": False}], reward_all=7.0) for t in range(1, 11)]
    whole, part = decisions(stored("dgf", records), 20), decisions(stored("dgf", records), 7)
    assert whole[0] == [1, [7.0, None, None, None, None], [3, 1], [0.1235, 0.1235], [None, None], [1.0, 1.0], "10"]
    assert [found[0] for found in whole] == list(range(1, 11)) and [found[0] for found in part] == [1, 4, 7, 10]


def test_gains_of_a_filter_round_are_on_V_itself_and_cross_fitted() -> None:
    step = {"client": 3, "a": None, "b": None, "p": 1.0, "kept": True}
    rewards = {"reward_all": 9.5, "reward_filtered": 9.625, "honest_gain": 0.05, "honest_gain_stderr": 0.01}
    (found,) = decisions(stored("prune", [record(1, trace=[step], **rewards)]), 20)
    assert found[1] == [9.5, 9.625, 0.125, 0.05, 0.0196]


def value(client: int, value: float | None, stderr: float | None, mean: float | None = None) -> dict[str, Any]:
    """The value of a client at a filtering. The running estimate is the same, unless its mean is given."""
    mean = value if mean is None else mean
    running = {"mean": mean, "mean_stderr": stderr, "update": mean, "update_stderr": stderr}
    return {"client": client, "value": value, "stderr": stderr, **running}


def valued(*means: tuple[float | None, float | None], name: str = "prune", seed: int = 0, noisy: bool = False) -> Run:
    """A run with one filtering that kept the clients with values above 0."""
    clients = list(range(len(means)))
    kept = [k for k in clients if (means[k][0] or 0) > 0]
    values = [value(k, *each) for k, each in enumerate(means)]
    whole = record(
        1, 0.5, did_filter=True, available=clients, considered=clients, filtered=kept, selected=kept[:1], values=values
    )
    return stored(name, [whole], seed, tuple(noisy and k == 0 for k in clients))


def test_values_by_hand() -> None:
    run = valued((-0.5, 0.1), (0.2, 0.2), (None, None), (0.5, 0.1), noisy=True)
    more = record(2, did_filter=True, considered=[1], filtered=[1], values=[value(1, 0.3, 0.1, mean=0.25)])
    found = client_values(Run(run.directory, run.table, [*run.records, more], clients=run.clients), 100)
    assert [(row["name"], row["value"], row["interval"], row["verdict"]) for row in found["rows"]] == [
        ("c0", -0.5, 0.196, "hurts"),
        ("c1", 0.25, 0.196, "helps"),
        ("c3", 0.5, 0.196, "helps"),
        ("c2", None, None, "not measured"),
    ]
    assert [(row["kept"], row["considered"]) for row in found["rows"]] == [(0, 1), (2, 2), (1, 1), (0, 1)]
    assert [(row["fault"], row["examples"]) for row in found["rows"]][:2] == [("random labels", 7), ("", 7)]
    assert found["history"][1] == [[1, 0.2, 0.392, 0.2, 0.392], [2, 0.3, 0.196, 0.25, 0.196]]
    assert found["sentence"] == f"1 client hurts: c0 ({MINUS}0.50 ± 0.20)."
    assert "AUC 1.000" in found["detection"] and "1.00 are faulty (precision)" in found["detection"]


def test_values_of_many_clients_show_the_clearest_and_omit_filter_rounds_evenly() -> None:
    means = [((k - 1500) / 1000, 1.0) for k in range(3000)]
    found = client_values(valued(*means), 300_000)
    assert found["of"] == 3000 and len(found["rows"]) == len(found["history"]) == 1000
    shown = [row["value"] for row in found["rows"]]
    assert shown == sorted(shown) and min(map(abs, shown)) >= 1
    records = [record(t, considered=[0], values=[value(0, 0.1, 0.1)]) for t in range(1, 11)]
    assert [entry[0] for entry in client_values(stored("prune", records), 4)["history"][0]] == [1, 4, 7, 10]


def test_runs_without_values_say_how_they_are_measured() -> None:
    unmeasured = [record(1, considered=[0], values=[value(0, None, None)])]
    for records in ([], [record(1)], unmeasured):
        assert client_values(stored("dgf", records), 100) == {"sentence": NOT_MEASURED, "rows": []}


def test_sentence_names_at_most_four_clients_that_hurt() -> None:
    def sentence_of(*means: tuple[float, float]) -> str:
        return hurting_sentence(client_rows(valued(*means).records, None))

    assert sentence_of((0.1, 0.01), (0.2, 0.01)) == "No client hurts measurably."
    assert sentence_of((-0.5, 1.0), (0.1, 0.01)) == (
        "No client hurts measurably. This is no proof that all are healthy: 1 of 2 cannot be told from a typical "
        "client. A larger filtering set, more rounds or more local training make it clearer."
    )
    run = valued((-0.5, 1.0), (0.1, 0.01), (-0.2, 1.0))
    often = hurting_sentence(client_rows([{**run.records[0], "round": t} for t in (1, 2, 3)], None))
    assert "2 of 3 cannot be told from a typical client. The filter never kept 0, 2." in often
    assert sentence_of((-0.083, 0.021), (0.1, 0.01), (-0.0012, 0.0001)) == (
        f"2 clients hurt: 0 ({MINUS}0.083 ± 0.041), 2 ({MINUS}0.00120 ± 0.00020)."
    )
    assert sentence_of(*[(-6.0 + k, 1.0) for k in range(4)], (-100, 25), (-200, 60)) == (
        f"6 clients hurt: 5 ({MINUS}200 ± 118), 4 ({MINUS}100 ± 49), 0 ({MINUS}6.0 ± 2.0), 1 ({MINUS}5.0 ± 2.0)"
        " and 2 more."
    )


def test_headline_names_the_clients_that_hurt_in_the_best_run_with_values() -> None:
    alone = Section("title", Path("place"), (0,), (ArmRuns("prune", "prune", (valued((-0.5, 0.1), (0.5, 0.1)),)),))
    made = headline(alone, *measure(alone))
    assert made["sentence"].endswith(f"1 client hurts: c0 ({MINUS}0.50 ± 0.20).")
    assert made["run"] == {"arm": "prune", "seed": 0}
    assert made["tiles"][-1]["detail"] == "Seed 0: 1 hurt, 1 help, no verdict on 0"
    better = ArmRuns("plain", "plain", (stored("plain", [record(1, 0.9)]),))
    both = Section("title", Path("place"), (0,), (better, *alone.arms))
    made = headline(both, *measure(both))
    assert made["sentence"].startswith("plain has the highest final accuracy: 90.0 % (1 seed).") and made["run"] == {
        "arm": "prune",
        "seed": 0,
    }
    assert made["sentence"].endswith(f"1 client hurts (prune, seed 0): c0 ({MINUS}0.50 ± 0.20).")
    without = Section("title", Path("place"), (0,), (better,))
    assert headline(without, *measure(without))["run"] is None and "hurt" not in sentence(without)


def test_warnings_about_the_filtering_set_are_shown_once_each() -> None:
    notes = (
        ["filtering set: needs 91 samples", "another note"],
        ["filtering set: needs 7 samples"],
        ["filtering set: x"],
    )
    runs = tuple(stored("dgf", [record(1, notes=given), record(2, notes=given)], t) for t, given in enumerate(notes))
    made = Section("title", Path("place"), (0, 1, 2), (ArmRuns("dgf", "dgf", runs),))
    assert filtering_set_warnings(made) == [
        "Filtering set (dgf, seed 0 and 1 more run): needs 91 samples.",
        "Filtering set (dgf, seed 2): x.",
    ]
    assert report_data([made])["sections"][0]["warnings"] == filtering_set_warnings(made)
    alone = Section("title", Path("place"), (0,), (ArmRuns("dgf", "dgf", runs[:1]),))
    assert filtering_set_warnings(alone) == ["Filtering set: needs 91 samples."]


def test_settings_are_split_into_shared_and_differing() -> None:
    made = settings(section(none=[[0.4]], dgf=[[0.6]]))
    assert made == {"shared": [("rounds", "1")], "differing": [["filter.name", ['"none"', '"dgf"']]]}


# Which directories become which sections


def test_comparison_becomes_one_section(store: Path) -> None:
    (found,) = collect([store])
    assert (found.title, found.seeds, found.finished) == ("c", (0, 1), True)
    assert [(arm.name, arm.against, len(arm.started)) for arm in found.arms] == [
        ("fedavg", "fedavg", 2),
        ("filfl-dgf", "fedavg", 2),
        ("filfl-rgf", "fedavg", 2),
    ]


def test_reproduction_plan_lists_its_runs(store: Path, tmp_path: Path) -> None:
    place = tmp_path / "all" / "figure-3"
    place.mkdir(parents=True)
    shutil.move(store / "fedavg" / "seed-0", tmp_path / "all" / "runs" / "ab12")
    plan = {
        "title": "Figure 3",
        "target": 0.25,
        "seeds": [0, 1],
        "arms": {"none": {"against": "none", "filter.name": "none"}},
        "runs": {"none": ["../runs/ab12", "../runs/gone"]},
    }
    (place / "comparison.toml").write_text(tomli_w.dumps(plan))
    (found,) = collect([tmp_path / "all"])
    assert (found.title, found.target, found.missing, found.finished) == ("Figure 3", 0.25, 1, False)
    assert found.arms[0].runs[0].name == "fedavg" and found.arms[0].runs[1] is None
    problems = report_data([found])["sections"][0]["problems"]
    assert problems == ["1 run not started."], "and the run is not shown again by itself"


def test_single_runs_are_tested_against_the_one_without_a_filter(store: Path, tmp_path: Path) -> None:
    loose = tmp_path / "loose"
    for name in ("filfl-dgf", "fedavg"):
        for seed in (0, 1):
            shutil.copytree(store / name / f"seed-{seed}", loose / f"{name}{seed}")
    (found,) = collect([loose])
    assert found.title == "4 runs on digits"
    assert [(arm.name, arm.against, len(arm.started)) for arm in found.arms] == [
        ("fedavg", "fedavg", 2),
        ("filfl-dgf", "fedavg", 2),
    ]
    shutil.copytree(loose / "fedavg0", loose / "again")
    (found,) = collect([loose / "again", loose / "fedavg0"])
    assert [arm.name for arm in found.arms] == ["again", "fedavg0"], "same name and seed twice: named by directory"
    for name in ("one", "two"):
        shutil.copytree(loose / "again", tmp_path / "deep" / name / "seed-0")
    (found,) = collect([tmp_path / "deep"])
    assert [arm.name for arm in found.arms] == ["one", "two"], "named by the part of the path that differs"


def test_folder_and_subfolder_show_each_run_once(store: Path) -> None:
    assert len(collect([store.parent, store])) == 1


def test_comparison_with_damaged_plan_is_read_from_its_runs(store: Path) -> None:
    (store / "comparison.toml").write_text("seeds = [0,")
    (found,) = collect([store])
    assert [arm.name for arm in found.arms] == ["fedavg", "filfl-dgf", "filfl-rgf"]
    assert "comparison.toml is damaged" in report_data([found])["sections"][0]["problems"][0]


def test_directories_without_runs(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="nowhere does not exist: give the directory of a run"):
        collect([tmp_path / "nowhere"])
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="is a file, not a directory"):
        collect([tmp_path / "file"])
    assert collect([tmp_path]) == []


# Run directories that are cut off or damaged


@given(share=st.floats(0, 1))
def test_run_cut_off_anywhere_shows_complete_rounds(share: float, tmp_path_factory: pytest.TempPathFactory) -> None:
    lines = [json.dumps(record(t, t / 10)).encode() + b"\n" for t in range(1, 6)]
    whole = b"".join(lines)
    place = tmp_path_factory.mktemp("cut")
    (place / "config.toml").write_text('name = "cut"\nrounds = 5\n')
    (place / "rounds.jsonl").write_bytes(whole[: round(share * len(whole))])
    run = scan_run(place)
    there = (place / "rounds.jsonl").read_bytes().count(b"\n")
    assert [found["round"] for found in run.records] == list(range(1, there + 1))
    assert not any("rounds.jsonl" in problem for problem in run.problems), "a line that is being written is not damage"
    assert "cut" in render(report_data(collect([place])))


@pytest.mark.parametrize(
    "damage",
    [
        lambda line: "rubbish",
        lambda line: "[]",
        lambda line: "7",
        lambda line: line.replace('"round":5', '"round":"five"'),
        lambda line: line.replace('"round":5', '"round":6'),
        lambda line: line.replace('"selected":[', '"selected":[-1,'),
        lambda line: line.replace('"trace":[', '"trace":[{},'),
        lambda line: line.replace('"test_loss":', '"test_loss":"high","other":'),
        lambda line: line.replace('"did_filter"', '"did_not_filter"'),
        lambda line: line.replace('"values":[', '"values":[{"client":1},'),
        lambda line: line.replace('"values":', '"values":7,"other":'),
        lambda line: line.replace('"notes":[', '"notes":[7,'),
        lambda line: line.replace('"honest_gain":', '"honest_gain":"high","other":'),
    ],
)
def test_records_end_before_the_first_damaged_line(store: Path, damage: Callable[[str], str]) -> None:
    path = store / "filfl-dgf" / "seed-0" / "rounds.jsonl"
    lines = path.read_text().splitlines()
    assert damage(lines[4]) != lines[4]
    path.write_text("\n".join([*lines[:4], damage(lines[4]), *lines[5:]]) + "\n")
    run = scan_run(path.parent)
    assert len(run.records) == 4
    assert run.problems == ("rounds.jsonl is damaged after round 4 (later rounds are left out)",)
    with pytest.raises(RunError, match=r"seed-0: rounds.jsonl is damaged after round 4 .*; run again with --resume"):
        read_run(path.parent)
    (shown,) = report_data(collect([store]))["sections"]
    assert any("seed-0: rounds.jsonl is damaged after round 4" in problem for problem in shown["problems"])
    assert any("filfl-dgf seed 0 (4 of 12 rounds)" in problem for problem in shown["problems"])


def test_records_without_values_and_gains_are_read(store: Path) -> None:
    path = store / "filfl-dgf" / "seed-0" / "rounds.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        for key in ("notes", "values", "honest_gain", "honest_gain_stderr"):
            del line[key]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    reseal(path.parent)
    run = read_run(path.parent)
    assert len(run.records) == 12 and all(found["values"] == [] for found in run.records)
    assert client_values(run, 100)["sentence"] == NOT_MEASURED
    assert report_data(collect([store]))["sections"][0]["problems"] == []


def test_run_with_only_a_damaged_config_is_shown(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("name = ")
    data = report_data(collect([tmp_path]))
    (shown,) = data["sections"]
    assert shown["headline"]["sentence"] == "No round has been tested yet."
    assert any("config.toml is damaged" in problem for problem in shown["problems"])
    assert json.loads(to_script(data)) == json.loads(json.dumps(data))


def test_run_without_clients_file_is_shown_with_ids(store: Path) -> None:
    place = store / "filfl-rgf" / "seed-1"
    (place / "clients.csv").unlink()
    run = scan_run(place)
    found = client_map(run)
    assert len(run.records) == 12 and found["sizes"] is None
    assert found["names"] == [str(k) for k in found["ids"]] and found["ids"]
    assert run.problems == ("clients.csv is missing (client names, sizes and faults are unknown)",)
    with pytest.raises(RunError, match=r"clients.csv is missing .*; run again with --resume to repair it"):
        read_run(place)


def test_strict_readers_raise_for_what_is_missing(store: Path, tmp_path: Path) -> None:
    place = store / "fedavg" / "seed-0"
    assert read_finished_run(place).finished
    lines = (place / "rounds.jsonl").read_bytes().splitlines(keepends=True)
    (place / "rounds.jsonl").write_bytes(b"".join(lines[:7]))
    with pytest.raises(
        RunError, match=r"rounds.jsonl was changed after the run was finished .*; run again with --resume"
    ):
        read_run(place)
    (place / "summary.json").unlink()
    assert len(read_run(place).records) == 7
    with pytest.raises(RunError, match=r"seed-0 is not finished \(7 of 12 rounds\); run again with --resume"):
        read_finished_run(place)
    with pytest.raises(RunError, match=r"is not a run directory: it has no config.toml"):
        read_run(tmp_path / "nowhere")
    (place / "config.toml").write_text("rounds = ")
    with pytest.raises(RunError, match=r"config.toml is damaged"):
        read_run(place)


ARMS = ("fedavg", "filfl-dgf", "filfl-rgf", "filfl-prune", "fedavg-poc", "filfl-dgf-poc", "filfl-prune-poc")


@pytest.mark.parametrize("width", [60, 80, 120])
def test_terminal_tables_fit_and_every_number_is_whole(
    width: int, store: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(terminal, "console", Console(width=width))
    rng = np.random.default_rng(0)
    accuracies = {arm: (0.5 + 0.4 * rng.random((4, 30))).tolist() for arm in ARMS}
    statistics, _ = measure(section(**accuracies))
    timed = [
        replace(arm, accuracy_at={10: arm.measures["accuracy"], 30: arm.measures["accuracy"]}) for arm in statistics
    ]
    table = comparison_table("title", timed, 0.8, 4)
    terminal.print_table(table.rich(), table.expendable)
    clients_command(store / "filfl-dgf" / "seed-0", as_json=False, as_csv=False)
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= width and "…" not in printed
    for heading in ("final\naccuracy", "Welch\np"):
        assert all(cell in printed for cell in table.columns[heading])
    run = read_run(store / "filfl-dgf" / "seed-0")
    assert all(f"{row.value:+.4f}" in printed for row in client_rows(run.records, run.clients) if row.value is not None)


def test_clients_command_prints_names_as_they_are(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = store / "filfl-dgf" / "seed-0"
    lines = (place / "clients.csv").read_text().replace("\n0,0,", "\n0,a[/b][red],")
    (place / "clients.csv").write_text(lines)
    reseal(place)
    clients_command(place, as_json=False, as_csv=False)
    printed = capsys.readouterr().out
    assert "a[/b][red]" in printed and "Against the known faults: AUC " in printed


# One damaged run must not cost the others.


def in_line(name: str, change: Callable[[str], str]) -> Callable[[Path], None]:
    """Change the fifth line of a file."""

    def damage(run: Path) -> None:
        lines = (run / name).read_text().splitlines(keepends=True)
        changed = change(lines[4])
        assert changed != lines[4]
        (run / name).write_text("".join([*lines[:4], changed, *lines[5:]]))

    return damage


def in_file(name: str, content: bytes) -> Callable[[Path], None]:
    def damage(run: Path) -> None:
        (run / name).write_bytes(content)

    return damage


DEEP = "[" * 100_000
DAMAGE: dict[str, tuple[Callable[[Path], None], str]] = {
    "time NaN": (in_line("times.jsonl", lambda line: line.replace("0.5", "NaN")), "times.jsonl is damaged in 1 of 12"),
    "time text": (in_line("times.jsonl", lambda line: line.replace("0.5", '"x"')), "times.jsonl is damaged in 1 of 12"),
    "time round": (in_line("times.jsonl", lambda line: line.replace("5,", "[5],")), "times.jsonl is damaged in 1 of"),
    "time 400 digits": (in_line("times.jsonl", lambda line: line.replace("0.5", "9" * 400)), "times.jsonl is damaged"),
    "time deep": (in_line("times.jsonl", lambda line: DEEP + "\n"), "times.jsonl is damaged in 1 of 12 lines"),
    "400 digits": (
        in_line("rounds.jsonl", lambda line: line.replace('"test_loss":', f'"test_loss":{"9" * 400},"other":')),
        "rounds.jsonl is damaged after round 4",
    ),
    "5000 digits": (
        in_line("rounds.jsonl", lambda line: line.replace('"round":5', f'"round":{"9" * 5000}')),
        "rounds.jsonl is damaged after round 4",
    ),
    "true": (
        in_line("rounds.jsonl", lambda line: line.replace('"test_loss":', '"test_loss":true,"other":')),
        "rounds.jsonl is damaged after round 4",
    ),
    "large id": (
        in_line("rounds.jsonl", lambda line: line.replace('"selected":[', f'"selected":[{2**63},')),
        "rounds.jsonl is damaged after round 4",
    ),
    "large refused id": (
        in_line("rounds.jsonl", lambda line: line.replace('"refused":{', f'"refused":{{"{2**63}":"x",')),
        "rounds.jsonl is damaged after round 4",
    ),
    "refused for a list": (
        in_line("rounds.jsonl", lambda line: line.replace('"refused":{', '"refused":{"1":["x"],')),
        "rounds.jsonl is damaged after round 4",
    ),
    "metric text": (
        in_line("rounds.jsonl", lambda line: line.replace('"metrics":{', '"metrics":{"f1":"high"')),
        "rounds.jsonl is damaged after round 4",
    ),
    "reward text": (
        in_line("rounds.jsonl", lambda line: line.replace('"reward_optimum":null', '"reward_optimum":"high"')),
        "rounds.jsonl is damaged after round 4",
    ),
    "deep": (in_line("rounds.jsonl", lambda line: DEEP + "\n"), "rounds.jsonl is damaged after round 4"),
    "deep field": (
        in_line("rounds.jsonl", lambda line: line.replace('"notes":[', '"notes":[' + "[" * 900 + "]" * 900 + ",")),
        "rounds.jsonl is damaged after round 4",
    ),
    "deep config": (in_file("config.toml", b"x = " + DEEP.encode()), "config.toml is damaged"),
    "config of other types": (
        in_file("config.toml", b"name = [1]\nseed = 'x'\nrounds = {}\nfilter = 7\nevaluate = []\ndata = 2020-01-01\n"),
        "config.toml was changed",
    ),
    "config not UTF-8": (in_file("config.toml", b'name = "\xff"'), "config.toml is damaged"),
    "size of 400 digits": (
        in_line("clients.csv", lambda line: re.sub(r",\d+,(?=[^,]*,[^,]*$)", f",{'9' * 400},", line)),
        "clients.csv is damaged",
    ),
    "deep summary": (in_file("summary.json", DEEP.encode()), "summary.json was changed or truncated"),
    "summary list": (in_file("summary.json", b"[]"), "summary.json was changed or truncated"),
    "folder for a file": (lambda run: ((run / "times.jsonl").unlink(), (run / "times.jsonl").mkdir())[1], "directory"),
}


@pytest.mark.parametrize("sealed", [True, False], ids=["finished", "running"])
@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_run_is_named_and_the_others_are_shown(name: str, sealed: bool, store: Path) -> None:
    damage, problem = DAMAGE[name]
    if not sealed:
        (store / "filfl-dgf" / "seed-0" / "summary.json").unlink()
        problem = "" if "was changed" in problem else problem  # without a hash, any readable config is as good
    damage(store / "filfl-dgf" / "seed-0")
    for directories in ([store], [store / "filfl-dgf", store / "filfl-rgf"]):  # as a comparison, and as single runs
        data = report_data(collect(directories))
        problems = [each for section in data["sections"] for each in section["problems"]]
        assert any("seed-0: " in each and problem in each for each in problems) or not problem, problems
        assert not any(
            "filfl-rgf" in each and ("damaged" in each or "cannot" in each) for each in problems if "dgf" not in each
        )
        shown = [run for section in data["sections"] for run in section["runs"]]
        assert sum(run["done"] == 12 and run["finished"] for run in shown) >= len(shown) - 1
        assert json.loads(to_script(data)) and "<title>" in render(data)


def test_numbers_that_cannot_be_shown_cost_only_their_run(store: Path) -> None:
    """Losses that are finite, but whose mean is not. The hashes are right."""
    run = store / "filfl-dgf" / "seed-1"
    lines = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    for line in lines:
        line["test_loss"] = 1.7e308
    (run / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    reseal(run)
    (shown,) = (data := report_data(collect([store])))["sections"]
    assert any("filfl-dgf/seed-1: its rounds cannot be shown (" in problem for problem in shown["problems"])
    assert [run["done"] for run in shown["runs"]] == [12, 12, 12, 0, 12, 12]
    render(data)


def test_an_edited_accuracy_is_named_and_not_reported(store: Path) -> None:
    run = store / "filfl-dgf" / "seed-0"
    records = (run / "rounds.jsonl").read_text()
    (run / "rounds.jsonl").write_text(re.sub(r'"test_accuracy":[0-9.]+', '"test_accuracy":1.0', records))
    (shown,) = report_data(collect([store]))["sections"]
    assert any("rounds.jsonl was changed after the run was finished" in problem for problem in shown["problems"])
    assert shown["headline"]["sentence"].startswith("5 of 6 runs are finished, so there is no verdict yet.")
    assert [found["done"] for found in shown["runs"]] == [12, 12, 0, 12, 12, 12]

    (run / "rounds.jsonl").write_text(records)
    summary = json.loads((run / "summary.json").read_text()) | {"final_accuracy": 0.999}
    (run / "summary.json").write_text(json.dumps(summary))
    with pytest.raises(
        RunError, match=r"summary.json was changed .*final_accuracy is 0.999 in it, but 0.\d+ by the rec"
    ):
        read_finished_run(run)


def test_folder_names_that_are_not_utf_8_are_shown(store: Path, tmp_path: Path, cli: Callable[..., str]) -> None:
    other = os.fsencode(tmp_path / "all")
    os.mkdir(other)  # noqa: PTH102
    os.rename(store / "fedavg" / "seed-0", other + b"/\xff\xfe")  # noqa: PTH104
    os.rename(store / "filfl-dgf" / "seed-0", other + b"/b")  # noqa: PTH104
    Path(os.fsdecode(other + b"/\xff\xfe/config.toml")).write_text("")
    Path(os.fsdecode(other + b"/\xff\xfe/summary.json")).unlink()
    shown = cli("report", "all", "-o", "page.html")
    assert "\\udcff\\udcfe" in shown and "Open the report" in shown
    assert "filfl-dgf" in (tmp_path / "page.html").read_text(encoding="utf-8")
    cli("report", os.fsdecode(b"all/\xff\xfe"), "-o", "page.html")


# The page


def test_page_is_self_contained_and_escapes_text(store: Path) -> None:
    title = "</script><script>alert(1)</script> & {{ data }}"
    plan = tomllib.loads((store / "comparison.toml").read_text())
    (store / "comparison.toml").write_text(tomli_w.dumps({**plan, "title": title}))
    page = render(report_data(collect([store])))
    assert "</script><script>alert" not in page
    assert len(re.findall("</script", page)) == 4
    library = (resources.files("filfl.report.html") / "page" / "echarts.min.js").read_text(encoding="utf-8")
    assert library in page
    assert not re.search(r'(?:src|href)\s*=\s*"(?!data:)', page.replace(library, "")), (
        "nothing is loaded from elsewhere"
    )
    inside = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL).group(1)
    assert json.loads(inside)["sections"][0]["title"] == title
    assert "<title>&lt;/script&gt;&lt;script&gt;alert(1)&lt;/script&gt; &amp; {{ data }}</title>" in page
    assert "Apache" in page


@examples(max_examples=20, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from([50.0, 51.0, 60.0, 170.0]), st.sampled_from([0.60, 0.605, 0.7])), max_size=13)
)
def test_labels_in_a_plot_overlap_neither_each_other_nor_points(points: list[tuple[float, float]]) -> None:
    figure = Figure(figsize=(6.4, 4.8))
    axis = figure.subplots()
    axis.set(xlim=(40, 200), ylim=(0.55, 0.75), xscale="log")
    label_points(axis, {f"filter-{i}": point for i, point in enumerate(points)})
    names = [label.get_window_extent() for label in axis.texts if label.get_text()]
    assert len(names) == len(points)
    assert not any(a.overlaps(b) for a, b in itertools.combinations(names, 2))
    assert not any(name.contains(x, y) for name in names for x, y in axis.transData.transform(points or [(50, 0.6)]))
