"""With the same config, seed and clients, Flower and the simulator make the same decisions, up to ties."""

import importlib
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from flwr.app import Context, RecordDict

import filfl
from federation import MemoryGrid, Node
from filfl.runs import read_run
from filfl.runs.clients import client_rows
from replay import replay

pytestmark = pytest.mark.usefixtures("single_thread")

APP = Path(__file__).parent / "parity"


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> tuple[ModuleType, ModuleType, ModuleType]:
    """The modules of the app: server, client and task."""
    monkeypatch.syspath_prepend(str(APP))
    names = ("server_app", "client_app", "task")
    modules = [importlib.import_module(f"flower_parity.{name}") for name in names]
    for name in list(sys.modules):
        if name.startswith("flower_parity"):
            monkeypatch.delitem(sys.modules, name)
    return tuple(modules)


CASES = [
    *(("models", "average", filter, by) for filter in ("dgf", "rgf") for by in ("random", "power-of-choice", "divfl")),
    *(("logits", "ensemble", "local-search", by) for by in ("random", "power-of-choice")),
]


@pytest.mark.parametrize(("transport", "reward", "filter", "selection"), CASES)
def test_flower_decides_as_the_simulator(
    app: tuple[ModuleType, ModuleType, ModuleType],
    transport: str,
    reward: str,
    filter: str,
    selection: str,
    tmp_path: Path,
) -> None:
    server, client, task = app
    settings: dict[str, Any] = tomllib.loads((APP / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    settings |= {"out": str(tmp_path / "run"), "selection": selection, "filter": filter, "rounds": 6}
    settings |= {"transport": transport, "reward": reward}
    sites = settings["sites"]
    nodes = {
        9000 - 13 * i: Node(client.app, {"partition-id": i, "num-partitions": sites}, settings) for i in range(sites)
    }

    class InMemoryGrid(MemoryGrid):
        """Named like the grid of the simulation engine, for which the partition id is the client id."""

    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=settings)
    server.app(InMemoryGrid(nodes), context)
    theirs = read_run(tmp_path / "run").records
    assert all(record["available"] == list(range(sites)) for record in theirs)
    # Flower's FedAvg weights clients by their number of examples.
    replay({**task.load_config(settings).table(), "aggregation": {"name": "by-examples"}}, theirs)


@pytest.mark.parametrize("transport", ["models", "logits"])
def test_a_flower_run_values_its_clients_like_the_simulator(
    app: tuple[ModuleType, ModuleType, ModuleType], transport: str, tmp_path: Path
) -> None:
    server, client, task = app
    settings: dict[str, Any] = tomllib.loads((APP / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    settings |= {"out": str(tmp_path / "run"), "filter": "prune", "rounds": 6, "h": 2, "transport": transport}
    sites = settings["sites"]
    nodes = {100 + i: Node(client.app, {"partition-id": i, "num-partitions": sites}, settings) for i in range(sites)}

    class InMemoryGrid(MemoryGrid):
        """Named like the grid of the simulation engine, for which the partition id is the client id."""

    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=settings)
    server.app(InMemoryGrid(nodes), context)
    run = read_run(tmp_path / "run")
    first, *later = [record for record in run.records if record["did_filter"]]
    assert later and all(record["values"] and record["honest_gain"] is not None for record in (first, *later))
    config = {**task.load_config(settings).table(), "aggregation": {"name": "by-examples"}, "rounds": 1}
    (ours,) = filfl.simulate(filfl.Config.from_table(config)).records
    assert [value["client"] for value in first["values"]] == [value["client"] for value in ours["values"]]
    for theirs, own in zip(first["values"], ours["values"], strict=True):
        assert theirs["value"] == pytest.approx(own["value"], abs=1e-4)
    rows = client_rows(run.records, run.clients)
    assert len(rows) == sites and all(row.value is not None for row in rows)
