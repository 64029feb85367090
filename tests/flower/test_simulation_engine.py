"""Flower's simulation engine (`flwr run`) makes the same decisions as `filfl.simulate`, on one and two Ray nodes."""

import shutil
import subprocess
import tempfile
import time
import tomllib
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import loopback
from filfl.runs import read_run
from flower_parity.task import load_config
from loopback import LINK, Federation
from replay import replay

pytestmark = pytest.mark.federation
APP = Path(__file__).parent / "parity"
EXAMPLE = Path(__file__).parents[2] / "examples" / "flower-filfl"
TIMEOUT = 400.0
"""The longest wait for any one event, in seconds. It is generous because the machine may be busy."""
TEN_NODES = "num-supernodes=10 client-resources-num-cpus=1"


@contextmanager
def engine(folder: Path) -> Iterator[Federation]:
    """A SuperLink for simulations. `flwr run` can start one itself, but waits only 15 s for it and never ends it."""
    with Federation(folder, insecure=True) as federation:
        federation.start_superlink("--simulation", timeout=TIMEOUT)
        yield federation


@pytest.fixture(scope="module")
def one_ray_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    with engine(tmp_path_factory.mktemp("engine") / "all") as federation:
        yield federation


@contextmanager
def ray_nodes(folder: Path, number: int) -> Iterator[str]:
    """Start a Ray cluster of `number` nodes with one core each on this machine; yields its address."""
    address = f"127.0.0.1:{loopback.free_port()}"
    head = ["--head", "--port", address.split(":")[1], "--ray-client-server-port", str(loopback.free_port())]
    head += ["--include-dashboard", "false", "--temp-dir", str(folder / "ray")]
    size = ["--num-cpus", "1", "--object-store-memory", str(100 * 2**20)]
    started: list[subprocess.Popen[bytes]] = []
    try:
        for node in range(number):
            command = ["ray", "start", "--block", *size, *(["--address", address] if node else head)]
            log = folder / f"{node}.log"
            with log.open("wb") as file:
                started.append(
                    subprocess.Popen(command, env=loopback.environment(folder), stdout=file, stderr=subprocess.STDOUT)
                )
            deadline = time.monotonic() + TIMEOUT
            while "Ray runtime started" not in log.read_text():
                assert started[-1].poll() is None and time.monotonic() < deadline, log.read_text()
                time.sleep(0.5)
        yield address
    finally:
        loopback.end_all(folder)
        for process in started:
            process.wait()


@pytest.mark.parametrize("selection", ["random", "power-of-choice"])
def test_the_engine_decides_as_the_simulator(one_ray_node: Federation, tmp_path: Path, selection: str) -> None:
    run(one_ray_node, tmp_path / "run", f'selection="{selection}"')
    assert_same_decisions(tmp_path / "run", selection=selection, rounds=10)


def test_two_ray_nodes_decide_as_the_simulator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Ray keeps sockets in its folder, and their paths must be short.
    with tempfile.TemporaryDirectory() as short, ray_nodes(Path(short), 2) as address:
        monkeypatch.setenv("RAY_ADDRESS", address)
        with engine(tmp_path / "all") as two_ray_nodes:
            run(two_ray_nodes, tmp_path / "run", "rounds=3")
        logs = (Path(short) / "ray" / "session_latest" / "logs").glob("worker-*.out")
        assert sum("ClientAppActor" in log.read_text() for log in logs) == 2, "one worker on each node of one core"
    assert_same_decisions(tmp_path / "run", rounds=3)


def test_the_example_runs_in_the_engine(one_ray_node: Federation, tmp_path: Path) -> None:
    changes = f'num-server-rounds=6 h=2 out="{tmp_path / "run"}"'
    arguments = ("run", str(EXAMPLE), LINK, "--stream", "--federation-config", TEN_NODES, "-c", changes)
    output = one_ray_node.flwr(*arguments, timeout=TIMEOUT)
    assert (tmp_path / "run" / "summary.json").exists(), output
    records = read_run(tmp_path / "run").records
    assert len(records) == 6 and records[0]["did_filter"]
    assert not {1, 4, 7} & {k for record in records for k in record["selected"]}, "they have random labels"
    assert records[-1]["test_accuracy"] > 0.8 and not any(record["refused"] for record in records)


def test_the_example_builds_as_fab_format_1(tmp_path: Path) -> None:
    app = shutil.copytree(EXAMPLE, tmp_path / "app", ignore=shutil.ignore_patterns("__pycache__"))
    done = subprocess.run(
        ["flwr", "build", "--app", str(app)],
        env=loopback.environment(tmp_path),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    [bundle] = tmp_path.glob("*.fab")
    names = set(zipfile.ZipFile(bundle).namelist())
    assert {"pyproject.toml", "LICENSE", *(f"flower_filfl/{name}_app.py" for name in ("server", "client"))} <= names


def run(federation: Federation, out: Path, settings: str) -> None:
    changes = f'{settings} min-nodes=10 timeout={TIMEOUT} out="{out}"'
    arguments = ("run", str(APP), LINK, "--stream", "--federation-config", TEN_NODES, "-c", changes)
    output = federation.flwr(*arguments, timeout=TIMEOUT)
    assert (out / "summary.json").exists(), output


def assert_same_decisions(out: Path, **settings: Any) -> None:
    """The run made the decisions of `filfl.simulate` with the same config, up to ties."""
    app = tomllib.loads((APP / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    made = read_run(out).records
    assert len(made) == settings["rounds"]
    replay(load_config(app["config"] | settings).table(), made)
