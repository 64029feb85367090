"""Who helps and who hurts: the rows of a run, `filfl clients`, and the warnings about the filtering set."""

import csv
import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import filfl
from filfl.core.evidence import Evidence
from filfl.filtering.fitness import Fitness
from filfl.runs.client_table import ClientTable
from filfl.runs.clients import Estimate, client_rows, detection, verdicts
from filfl.runs.reader import read_run


def record(**changes: Any) -> dict[str, Any]:
    plain = {"considered": [], "filtered": None, "did_filter": False, "selected": [], "refused": {}, "values": []}
    return {**plain, **changes}


def value(client: int, mean: float, stderr: float) -> dict[str, Any]:
    running = {"mean": mean, "mean_stderr": stderr, "update": mean, "update_stderr": stderr}
    return {"client": client, "value": 9.0, "stderr": 9.0, **running}


def test_rows_by_hand() -> None:
    records = [
        record(
            did_filter=True,
            considered=[2, 0, 1],
            filtered=[0, 2],
            selected=[0],
            values=[value(0, 0.5, 0.1), value(1, 0.1, 0.1), value(2, 0.0, 0.1)],
        ),
        record(filtered=[0, 2], selected=[2, 2], refused={"0": "late"}),
        record(did_filter=True, considered=[1, 0], filtered=[0], selected=[0], values=[value(1, -0.3, 0.1)]),
        record(selected=[4]),
    ]
    table = ClientTable(
        np.array(["a", "b", "c", "d", "e"]),
        np.arange(10, 15),
        np.array(["", "random labels", "", "", ""], dtype=object),
        np.zeros(5, dtype=bool),
    )
    rows = client_rows(records, table)
    assert [row.name for row in rows] == ["b", "c", "a", "e"], "lowest value first, unknown values last"
    b, c, a, e = rows
    assert (b.value, b.stderr, b.verdict, b.evidence) == (-0.3, 0.1, "hurts", pytest.approx(-3))
    assert (b.considered, b.kept, b.selected, b.refused, b.examples, b.fault) == (2, 0, 0, 0, 11, "random labels")
    assert (a.verdict, a.considered, a.kept, a.selected, a.refused) == ("helps", 2, 2, 2, 1)
    assert (c.verdict, c.selected) == ("cannot tell", 1), "selected twice in one round counts once"
    assert (e.value, e.verdict, e.evidence) == (None, "not measured", None)
    found = detection(rows)
    assert found is not None and (found.auc, found.precision, found.recall) == (1.0, 1.0, 1.0)
    assert detection([a, c]) is None, "no faulty client"
    unknown = client_rows(records, None)
    assert [row.name for row in unknown] == ["1", "2", "0", "4"] and {row.fault for row in unknown} == {None}


def test_the_verdicts_are_corrected_for_the_number_of_clients() -> None:
    """z = -4 has p = 0.00006, z = 2.5 has p = 0.012, z = 2 has p = 0.046: the limits for the first, second and third of
    five clients are 0.01, 0.02 and 0.03."""
    estimates = [(0.25, 0.1), (None, None), (-0.4, 0.1), (0.2, 0.1), (0.01, 0.1), (-0.05, 0.1), (0.3, 0.0)]
    assert verdicts([Estimate(*each, *each) for each in estimates]) == [
        "helps",
        "not measured",
        "hurts",
        "cannot tell",
        "cannot tell",
        "cannot tell",
        "not measured",
    ]
    assert verdicts([Estimate(-0.2, 0.1, -0.2, 0.1)]) == ["hurts"] and verdicts([]) == []
    assert verdicts([Estimate(0.19, 0.1, 0.19, 0.1)]) == ["cannot tell"]
    assert verdicts([Estimate(-0.2, 0.1, -0.2, 0.1)], [True]) == ["cannot tell"], "a trusted client"
    assert verdicts([Estimate(0.2, 0.1, 0.2, 0.1)], [True]) == ["helps"]


@pytest.mark.parametrize(("update", "word"), [(0.1, "cannot tell"), (-0.1, "cannot tell"), (-0.2, "hurts")])
def test_a_client_that_is_better_than_no_update_does_not_hurt(update: float, word: str) -> None:
    assert verdicts([Estimate(-0.5, 0.1, update, 0.1)]) == [word]


def test_few_healthy_clients_are_said_to_hurt_or_to_help() -> None:
    """The correction promises none of them in 19 of 20 healthy federations."""
    z = np.random.default_rng(0).normal(size=(200, 100))
    any_sure = [
        {"hurts", "helps"} & set(verdicts([Estimate(each, 1.0, each, 1.0) for each in row])) for row in z.tolist()
    ]
    assert sum(map(bool, any_sure)) <= 20


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("clients") / "run"
    changes = {"rounds": 12, "data.noisy": 0.3, "filter.name": "prune", "filter.transport": "logits"}
    filfl.simulate({**changes, "data.name": "digits", "filter.period": 2}, out=out)
    return out


def test_the_command_shows_a_table_and_the_detection(finished: Path, cli: Callable[..., str]) -> None:
    shown = cli("clients", str(finished))
    assert "who helps, who hurts" in shown and "AUC" in shown and "random labels" in shown and "cannot tell" in shown


def test_json_csv_and_python_have_the_same_rows(finished: Path, cli: Callable[..., str]) -> None:
    listed = json.loads(cli("clients", str(finished), "--json"))
    assert {"id", "name", "value", "stderr", "verdict", "kept", "selected", "refused"} <= listed[0].keys()
    assert [row["value"] for row in listed] == sorted(row["value"] for row in listed)
    rows = list(csv.DictReader(io.StringIO(cli("clients", str(finished), "--csv"))))
    assert [int(row["id"]) for row in rows] == [row["id"] for row in listed]
    run = read_run(finished)
    assert [row.id for row in client_rows(run.records, run.clients)] == [row["id"] for row in listed]
    again = filfl.simulate(finished / "config.toml", out=finished, resume=True)
    assert again.clients["value"].tolist() == [row["value"] for row in listed]
    assert list(again.clients.columns) == list(listed[0])
    found = detection(client_rows(run.records, run.clients))
    assert found is not None and found.auc == pytest.approx(run.records[-1]["metrics"]["value_auc"])


def test_a_run_without_values_says_how_to_get_them(tmp_path: Path, cli: Callable[..., str]) -> None:
    filfl.simulate({"rounds": 2, "filter.name": "none"}, out=tmp_path / "run")
    assert "measured no values" in " ".join(cli("clients", str(tmp_path / "run")).split())
    assert cli("clients", str(tmp_path / "nothing"), code=1).startswith("error:")


def test_a_resumed_run_has_the_values_of_an_uninterrupted_one(tmp_path: Path) -> None:
    config = {"rounds": 8, "data.noisy": 0.3, "filter.name": "prune", "filter.period": 2}
    whole = filfl.simulate(config)

    def stop(record: Any, state: Any) -> None:
        if record["round"] == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        filfl.simulate(config, out=tmp_path / "run", callbacks=[stop])
    resumed = filfl.simulate(config, out=tmp_path / "run", resume=True)
    assert resumed.records == whole.records and resumed.records[-1]["values"]


# Warnings about the filtering set.


def test_a_filtering_set_of_few_samples_is_named_before_the_first_round(blobs: filfl.FederatedData) -> None:
    for size, few in ((9, True), (10, False)):
        said: list[str] = []
        filfl.simulate({"rounds": 1, "filter.size": size}, data=blobs, say=said.append, progress=False)
        assert any(f"it has only {size} samples, too few to judge clients" in text for text in said) == few


def test_missing_classes_are_named_before_the_first_round(blobs: filfl.FederatedData) -> None:
    said: list[str] = []
    few = replace(blobs, filter_x=blobs.filter_x[blobs.filter_y == 0], filter_y=blobs.filter_y[blobs.filter_y == 0])

    def first(record: Any, state: Any) -> None:
        if record["round"] == 1:
            assert any("classes have no sample" in text for text in said), "said before the first round"

    result = filfl.simulate({"rounds": 3, "selection.k": 2}, few, say=said.append, callbacks=[first])
    warned = [note for note in result.records[0]["notes"] if note.startswith("filtering set: ")]
    assert f"{blobs.classes - 1} of {blobs.classes} classes have no sample in it" in warned[0]
    assert sum("classes have no sample" in text for text in said) == 1, "once"
    assert not any("classes" in note for record in result.records[1:] for note in record["notes"])


def test_a_filtering_set_of_the_clients_own_samples_is_named(blobs: filfl.FederatedData, tmp_path: Path) -> None:
    x, y = np.asarray(blobs.x), np.asarray(blobs.y)
    owners = np.repeat(np.arange(blobs.num_clients), np.diff(blobs.offsets))
    said: list[str] = []
    cut = filfl.FederatedData.from_arrays(x, y, owners)
    cut.save(tmp_path / "data")
    for data in (cut, filfl.FederatedData.open(tmp_path / "data")):
        filfl.simulate({"rounds": 1, "selection.k": 2}, data, say=said.append)
    assert sum("it has samples of all clients" in text for text in said) == 2
    own = filfl.FederatedData.from_arrays(x, y, owners, filtering=(x[:50], y[:50]))
    filfl.simulate({"rounds": 1, "selection.k": 2}, own, say=said.append)
    filfl.simulate({"rounds": 1, "selection.k": 2, "filter.name": "none"}, cut, say=said.append)
    assert sum("it has samples of all clients" in text for text in said) == 2, (
        "not for trusted samples, not without a filter"
    )


def test_a_gain_that_is_noise_is_named_once() -> None:
    evidence = Evidence(gains=((0.05, -0.01),) * 4)
    fitness = Fitness(m=100)
    evidence, warnings = fitness(evidence)
    assert warnings == [], "four filterings are not enough"
    evidence, warnings = fitness(evidence.adding_gain(0.05, -0.01))
    assert len(warnings) == 1 and "0.0500 in loss" in warnings[0] and "(-0.0100)" in warnings[0]
    assert fitness(evidence)[1] == []
    assert fitness(Evidence(gains=((0.05, 0.04),) * 5))[1] == [], "the gain is real"


def test_a_set_that_is_too_small_is_named_with_the_number_of_samples_that_would_do() -> None:
    evidence = Evidence()
    for _ in range(5):
        evidence = evidence.adding([(0, 0.01, 0.02), (1, -0.02, 0.02)])
    _, (warning,) = Fitness(m=50)(evidence)
    # The clearest client is one standard error away from 0: 1.96^2 times as many samples are needed.
    assert "with its 50 samples no single client can be told from noise; about 193 samples would do" in warning
    clear = evidence.adding([(2, 0.1, 0.02)])
    assert Fitness(m=50)(clear)[1] == []
