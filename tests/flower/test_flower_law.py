"""With the same config, seed and clients, Flower and the simulator make the same decisions, up to ties."""

import importlib
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from flwr.app import Context, RecordDict

from federation import MemoryGrid, Node
from filfl.runs import read_run
from replay import replay

pytestmark = pytest.mark.usefixtures("single_thread")

APP = Path(__file__).parents[2] / "examples" / "flower-filfl"


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> tuple[ModuleType, ModuleType, ModuleType]:
    """The modules of the example: server, client and task."""
    monkeypatch.syspath_prepend(str(APP))
    names = ("server_app", "client_app", "task")
    modules = [importlib.import_module(f"flower_filfl.{name}") for name in names]
    for name in list(sys.modules):
        if name.startswith("flower_filfl"):
            monkeypatch.delitem(sys.modules, name)
    return tuple(modules)


CASES = [
    *(("models", "average", filter, by) for filter in ("dgf", "rgf") for by in ("random", "power-of-choice", "divfl")),
    *(("logits", "ensemble", "local-search", by) for by in ("random", "power-of-choice")),
]


@pytest.mark.parametrize(("transport", "reward", "filter", "selection"), CASES)
def test_the_flower_example_decides_as_the_simulator(
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
