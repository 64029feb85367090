"""Names of clients and classes wherever a person looks. Records keep the numbers."""

import json
import logging
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

import filfl
from filfl.flower.node_registry import NodeRegistry
from filfl.flower.run import log_round

TOML = """
name = "sites"
rounds = 3
[selection]
k = 2
"""
SITES = ["Aachen", "Basel", "Chur", "Dijon"]
TABLE = ["data.name=table", "data.path=sites.csv", "data.client=site", "data.target=diagnosis"]


def changes(*pairs: str) -> list[str]:
    return [word for pair in pairs for word in ("--set", pair)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A table of four sites, of which the last has wrong labels, and a table of trusted rows."""
    rng = np.random.default_rng(0)
    age = rng.normal(60, 12, size=280)
    sick = age > 60
    site = np.array([SITES[i % 4] for i in range(280)], dtype=object)
    diagnosis = np.where(sick ^ (site == "Dijon"), "malignant", "benign")
    frame = pd.DataFrame({"site": site, "age": age, "sex": rng.choice(["f", "m"], size=280), "diagnosis": diagnosis})
    frame.to_csv(tmp_path / "sites.csv", index=False)
    frame.assign(diagnosis=np.where(sick, "malignant", "benign")).head(80).to_csv(tmp_path / "v.csv", index=False)
    (tmp_path / "my.toml").write_text(TOML)
    return tmp_path


def test_the_whole_way_from_a_csv_to_the_site_that_hurts(folder: Path, cli: Callable[..., str]) -> None:
    trusted = ["filter.data=file", "filter.path=v.csv", "filter.name=prune", "filter.period=1"]
    cli("run", "my.toml", *changes(*TABLE, *trusted), "--out", "run")
    rows = json.loads(cli("clients", "run", "--json"))
    assert {row["name"] for row in rows} == set(SITES) and rows[0]["name"] == "Dijon" and rows[0]["verdict"] == "hurts"
    assert all(name in cli("clients", "run") for name in SITES)
    assert "1 client hurts: Dijon (" in cli("report", "run")
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert all(f'"{name}"' in page for name in SITES)
    record = json.loads((folder / "run" / "rounds.jsonl").read_text().splitlines()[0])
    assert set(record["considered"]) == {0, 1, 2, 3}, "records keep the numbers"
    assert re.findall(r"^\d,(\w+),", (folder / "run" / "clients.csv").read_text(), re.MULTILINE) == SITES


def test_a_described_table_names_clients_features_and_classes(folder: Path, cli: Callable[..., str]) -> None:
    shown = cli("data", "table", "--path", "sites.csv", *changes(*TABLE[2:]))
    assert "Aachen, Basel, Chur, Dijon" in shown and "age, sex=f, sex=m" in shown and "benign, malignant" in shown
    assert (folder / "labels.png").stat().st_size > 10_000


def test_mistakes_on_the_command_line_are_one_sentence(folder: Path, cli: Callable[..., str]) -> None:
    for pairs, sentence in [
        ([*TABLE[:3]], "data.target must be set to columns of sites.csv, which has site, age, sex, diagnosis"),
        (
            [*TABLE[:2], "data.client=place", TABLE[3]],
            "the table has no column place; it has site, age, sex, diagnosis",
        ),
        (["data.name=table", "data.path=none.csv", *TABLE[2:]], "data.path: none.csv does not exist"),
        (
            ["data.name=images", "data.path=sites.csv"],
            "sites.csv is not a folder; give a folder with client/class/file",
        ),
        (["data.name=saved", "data.path=."], "was not written by FederatedData.save"),
    ]:
        code = 2 if "must be set" in sentence else 1
        shown = cli("run", "my.toml", *changes(*pairs), "--out", "wrong", code=code)
        assert "error: " in shown and sentence in shown and "Traceback" not in shown


def test_images_and_saved_data_run_from_the_command_line(folder: Path, cli: Callable[..., str]) -> None:
    for i in range(60):
        shade = np.full((4, 4), 200 if i % 2 else 50, dtype=np.uint8)
        path = folder / "photos" / f"clinic {i % 3}" / ("day" if i % 2 else "night") / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(shade).save(path)
    cli("run", "my.toml", *changes("data.name=images", "data.path=photos", "rounds=1"), "--out", "images")
    filfl.FederatedData.from_image_folder(folder / "photos").save(folder / "saved")
    cli("run", "my.toml", *changes("data.name=saved", "data.path=saved", "rounds=1"), "--out", "opened")
    rounds = [(folder / name / "rounds.jsonl").read_bytes() for name in ("images", "opened")]
    assert rounds[0] == rounds[1], "a saved folder gives the same run"
    assert "clinic 2" in (folder / "opened" / "clients.csv").read_text()


def test_warnings_name_clients_and_classes() -> None:
    x, y = np.arange(80.0).reshape(40, 2), np.array(["cat", "dog", "owl", "yak"] * 10)
    owners = np.array(["ann", "bob"] * 20, dtype=object)
    data = filfl.FederatedData.from_arrays(x, y, owners, filtering=(x[:2], y[:2]))
    messages: list[str] = []
    filfl.simulate({"rounds": 1, "selection.k": 1}, data=data, say=messages.append)
    assert any("2 of 4 classes have no sample in it (owl, yak)" in message for message in messages)
    messages.clear()
    config = {"rounds": 1, "selection.k": 2, "filter.name": "none"}
    filfl.simulate(config, data=data, loss=lambda out, y: out.detach().mean(), say=messages.append)
    assert re.search(r"round 1: every update was refused; client (ann|bob): ", messages[0])


def test_the_log_of_a_flower_run_names_nodes(caplog: pytest.LogCaptureFixture) -> None:
    registry = NodeRegistry()
    registry.add(7001, "clinic")
    registry.add(7002, "node-7002")
    assert registry.names() == {0: "clinic"}
    record = {"round": 1, "did_filter": False, "num_filtered": 2, "num_available": 2, "selected": [0, 1], "notes": []}
    record |= {"test_accuracy": None, "test_loss": None, "refused": {"0": "late", "1": "lost"}}
    caplog.set_level(logging.INFO, logger="flwr")
    logging.getLogger("flwr").addHandler(caplog.handler)
    try:
        log_round(record, 3, registry.names())
    finally:
        logging.getLogger("flwr").removeHandler(caplog.handler)
    assert "selected clinic, 1" in caplog.text
    assert "client clinic refused: late" in caplog.text and "client 1 refused: lost" in caplog.text
