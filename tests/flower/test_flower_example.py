"""The example app: its sites with random labels are filtered out, and its README shows the lines that it has."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, RecordDict

from federation import MemoryGrid, Node
from filfl.runs import read_run
from flower_filfl import client_app, server_app, task

pytestmark = pytest.mark.usefixtures("single_thread")

APP = Path(__file__).parents[2] / "examples" / "flower-filfl"


def settings(**changes: Any) -> dict[str, Any]:
    app = tomllib.loads((APP / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    return {**app["config"], **changes}


def run(configs: list[dict[str, Any]], out: Path, **changes: Any) -> list[dict[str, Any]]:
    config = settings(out=str(out), **changes)
    grid = MemoryGrid({100 + i: Node(client_app.app, each, config) for i, each in enumerate(configs)})
    server_app.app(grid, Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=config))
    return read_run(out).records


def test_the_example_filters_out_the_sites_with_random_labels(tmp_path: Path) -> None:
    configs = [{"partition-id": i, "num-partitions": 10} for i in range(10)]
    records = run(configs, tmp_path / "run", **{"num-server-rounds": 3})
    assert not any(record["refused"] for record in records)
    assert all(not {1, 4, 7} & set(record["selected"]) for record in records)
    assert records[-1]["test_accuracy"] > 0.7
    assert all("eval_acc" not in record["metrics"] for record in records), "the server's own test is the record's"


def test_a_site_with_a_file_trains_as_its_partition(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["make_sites.py", str(tmp_path / "data"), "3"])
    exec((APP / "make_sites.py").read_text())
    for site in range(3):
        context = Context(1, 1, {"partition-id": site, "num-partitions": 3}, RecordDict(), settings())
        by_path = Context(1, 1, {"data-path": str(tmp_path / "data" / f"site{site}.npz")}, RecordDict(), settings())
        for one, other in zip(client_app.load(context), client_app.load(by_path), strict=True):
            assert all((a == b).all() for a, b in zip(one.dataset.tensors, other.dataset.tensors, strict=True))
    configs = [{"data-path": str(tmp_path / "data" / f"site{site}.npz")} for site in range(3)]
    records = run(configs, tmp_path / "run", **{"num-server-rounds": 2, "k": 2, "filter": "dgf", "local-epochs": 5})
    assert all(set(record["selected"]) <= {0, 2} for record in records), "site 1 has random labels"


def test_no_two_parties_share_a_sample() -> None:
    parts = [task.load_partition(i, 10)[0] for i in range(10)]
    loaders = [loader.dataset.tensors[0].numpy() for loader in task.load_server_data()]
    images = [image.tobytes() for part in (*parts, *loaders) for image in part]
    assert len(images) == len(set(images)) == 1797


def test_the_readme_shows_the_lines_of_the_server() -> None:
    diff = (APP / "README.md").read_text().split("```diff\n")[1].split("```")[0].splitlines()
    code = (APP / "flower_filfl" / "server_app.py").read_text().splitlines()
    shown = [line[1:].strip() for line in diff if not line.startswith("-")]
    assert len(shown) > 10
    rest = [line.strip() for line in code]
    for line in shown:
        if line not in ("", "..."):
            assert line in rest, "each line of the diff is in server_app.py, in this order"
            rest = rest[rest.index(line) + 1 :]
    for name in ("client_app", "task"):
        assert "import filfl" not in (text := (APP / "flower_filfl" / f"{name}.py").read_text())
        assert "from filfl" not in text
