"""docs/records.md has every file of a run and every key in it, and no other."""

import csv
import json
import re
from dataclasses import fields
from pathlib import Path

import pytest

import filfl
from filfl.runs.clients import ClientRow

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "records.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^#+ (.*)\n((?:(?!#).*\n)*)", PAGE, re.MULTILINE))


def listed(section: str) -> set[str]:
    """The names in the first column of a section's table."""
    cells = re.findall(r"^\| (`[^|]*`) \|", SECTIONS[section], re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("comparison")
    config = {"rounds": 2, "data.clients": 12, "data.noisy": 0.3, "selection.k": 3, "model.hidden": [8]}
    arms = {"prune": {"filter.name": "prune", "filter.transport": "logits"}}
    filfl.compare(config, arms, seeds=1, jobs=1, out=directory / "made", progress=False)
    return directory / "made"


def test_run_directory(comparison: Path) -> None:
    run = comparison / "prune" / "seed-0"
    found = {path.name + "/" * path.is_dir() for path in run.iterdir()}
    assert found == listed("The run directory") - {"nodes.json", "tracked-NAME.json"}
    assert {path.name for path in comparison.iterdir() if path.suffix != ".png"} - {"prune"} == {
        "comparison.toml",
        "table.md",
        "summary.json",
    }
    assert (comparison / "comparison.png").exists() and "comparison.png" in listed("The directory of a comparison")


def test_records(comparison: Path) -> None:
    run = comparison / "prune" / "seed-0"
    records = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    assert {*records[0]} == listed("rounds.jsonl")
    assert {*records[0]["trace"][0]} == listed("Entries of trace")
    assert {*records[0]["values"][0]} == listed("Entries of values")
    assert {*records[0]["metrics"]} <= listed("Entries of metrics")
    phases = {key for line in (run / "times.jsonl").read_text().splitlines() for key in json.loads(line)}
    assert phases <= set(re.findall(r"`(\w+)`", SECTIONS["times.jsonl"]))


def test_all_phases_are_listed() -> None:
    sources = "".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    assert {*re.findall(r'clock\("(\w+)"\)', sources), "round"} == set(re.findall(r"`(\w+)`", SECTIONS["times.jsonl"]))


def test_tables(comparison: Path) -> None:
    run = comparison / "prune" / "seed-0"
    with (run / "clients.csv").open(newline="") as file:
        assert {*next(csv.reader(file))} == listed("clients.csv")
    shown = SECTIONS["clients.csv"].partition("columns:")[2]
    assert [field.name for field in fields(ClientRow)] == re.findall(r"`(\w+)`", shown)


def test_summaries(comparison: Path) -> None:
    summary = json.loads((comparison / "prune" / "seed-0" / "summary.json").read_text())
    assert {*summary} == listed("summary.json of a run") - {"stopped"}
    together = json.loads((comparison / "summary.json").read_text())
    assert {*together} <= set(re.findall(r"`(\w+)`", SECTIONS["The directory of a comparison"]))
    assert {*together["arms"][0]} == listed("Entries of arms")
