"""A real federation on loopback, with TLS and node keys. Nodes and the server are killed during runs."""

import csv
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from wire import CountingProxy

import certificates
import loopback
from filfl.rng import stream
from filfl.runs import read_run
from loopback import LINK, Federation

pytestmark = [
    pytest.mark.federation,
    pytest.mark.skipif(bool(certificates.missing()), reason=f"not installed: {', '.join(certificates.missing())}"),
]
TIMEOUT = 400.0
"""The longest wait for any one event, in seconds. It is generous because the machine may be busy."""
APP = Path(__file__).parent / "parity"
SCRIPT = Path(loopback.__file__)
SITES = 3
ALL_SITES = f'sites={SITES} noisy=0.34 k={SITES} filter="keep-all" reward="average" timeout={TIMEOUT} wait={TIMEOUT}'
"""All sites take part in every round, so that a lost site shows in the records."""
BY_LOGITS = (
    f'sites={SITES} min-nodes={SITES} k=2 filter="keep-all" reward="ensemble" transport="logits" '
    f"timeout={TIMEOUT} wait={TIMEOUT}"
)


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """A SuperLink and three SuperNodes with registered keys."""
    with Federation(tmp_path_factory.mktemp("federation") / "all") as federation:
        federation.start_superlink()
        for number in range(SITES):
            federation.register(number)
            federation.start_node(number, of=SITES)
        yield federation


@pytest.fixture
def connected(federation: Federation) -> Iterator[Federation]:
    """The federation with all three nodes connected. Nodes that a test ends are started again afterwards."""
    federation.wait_for_nodes(SITES, TIMEOUT)
    yield federation
    for number in range(SITES):
        if f"site{number}" not in federation.processes:
            federation.start_node(number, of=SITES)


@pytest.fixture
def proxy(connected: Federation) -> Iterator[CountingProxy]:
    """A proxy between all three nodes and the SuperLink, for one test.

    Flower's nodes exit if the proxy accepts connections while the SuperLink is down.
    """
    names = [f"site{number}" for number in range(SITES)]
    with CountingProxy(connected.port) as proxy:
        connected.end(*names)
        for number in range(SITES):
            connected.start_node(number, of=SITES, port=proxy.port)
        connected.wait_for_nodes(SITES, TIMEOUT)
        yield proxy
        connected.end(*names)


def test_the_script_completes_a_run_and_ends_all_processes(tmp_path: Path) -> None:
    folder = tmp_path / "federation"
    done = subprocess.run(
        [sys.executable, SCRIPT, folder, "--rounds", "2"], capture_output=True, text=True, timeout=2 * TIMEOUT
    )
    assert done.returncode == 0, done.stdout + done.stderr
    run = read_run(folder / "run")
    names = [str(name) for name in run.clients.names]
    assert sorted(names) == ["site0", "site1", "site2"]
    assert [record["round"] for record in run.records] == [1, 2]
    # site1 has random labels; only the others are selected
    assert all({names[k] for k in record["selected"]} <= {"site0", "site2"} for record in run.records)
    assert "round 1: the filter kept site" in done.stdout
    assert (folder / "report.html").stat().st_size > 100_000
    assert (folder / "site0" / "key").stat().st_mode & 0o077 == 0
    assert processes_of(folder) == []


def test_an_interrupted_script_ends_all_processes(tmp_path: Path) -> None:
    folder = tmp_path / "federation"
    with subprocess.Popen([sys.executable, SCRIPT, folder], stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as script:
        try:
            wait_until(lambda: loopback.living(folder / "site2"), "the third SuperNode has started")
            script.send_signal(signal.SIGTERM)
            script.communicate(timeout=TIMEOUT)
            assert script.returncode == 128 + signal.SIGTERM
            assert processes_of(folder) == []
        finally:
            script.kill()
            loopback.end_all(*folder.iterdir(), at_once=True)


@pytest.mark.parametrize("removed", [False, True])
def test_unregistered_keys_are_refused(federation: Federation, removed: bool) -> None:
    number = SITES + removed
    if removed:
        federation.register(number)
        node_id = nodes(federation)[-1]["node-id"]
        federation.flwr("supernode", "unregister", str(node_id), LINK)
    else:
        certificates.make_key(federation.key(number))
    federation.start_node(number, of=SITES)
    refused = federation.processes[f"site{number}"]
    try:
        assert refused.wait(TIMEOUT) != 0
        assert "Failed to activate SuperNode" in federation.log(f"site{number}").read_text()
    finally:
        federation.end(f"site{number}")
    assert len(nodes(federation)) == SITES


def test_a_killed_node_does_not_affect_other_nodes(connected: Federation, tmp_path: Path) -> None:
    out = tmp_path / "run"
    start(connected, f'{ALL_SITES} rounds=3 out="{out}"')
    wait_until(lambda: len(records(out)) >= 1, "the first round is over", connected)
    connected.end("site2", at_once=True)
    wait_until((out / "summary.json").exists, "the run is over", connected)
    lost = client(out, "site2")
    rest = sorted({0, 1, 2} - {lost})
    made = read_run(out).records
    assert [record["round"] for record in made] == [1, 2, 3]
    assert made[0]["selected"] == [0, 1, 2]
    assert made[-1]["available"] == made[-1]["selected"] == rest
    for record in made[1:]:
        # in the round in which it is killed it is recorded as refused, with the reason; later it is not available
        gone = lost not in record["available"]
        assert gone or (list(record["refused"]) == [str(lost)] and record["refused"][str(lost)])
        assert set(rest) <= set(record["selected"])


def test_recorded_bytes_match_the_traffic_of_logit_filtering(
    connected: Federation, proxy: CountingProxy, tmp_path: Path
) -> None:
    """A node handles each of its two messages in a new process, so its weights are kept between them.

    The model has 6 MB, so that polls and handshakes are a small part of the traffic.
    """
    out = tmp_path / "run"
    up, down = proxy.up, proxy.down
    start(connected, f'{BY_LOGITS} hidden=20000 rounds=2 out="{out}"')
    wait_until((out / "summary.json").exists, "the run is over", connected)
    up, down = proxy.up - up, proxy.down - down
    first, second = read_run(out).records
    assert (first["filtered"], len(first["selected"]), first["refused"]) == ([0, 1, 2], 2, {})
    assert not second["did_filter"]
    model = 4 * (64 * 20000 + 20000 + 20000 * 10 + 10)
    assert first["uplink_bytes"] == pytest.approx(2 * model, rel=0.01), "two models and the logits of three clients"
    assert up == pytest.approx(first["uplink_bytes"] + second["uplink_bytes"], rel=0.05)
    assert down == pytest.approx(first["downlink_bytes"] + second["downlink_bytes"], rel=0.05)


def test_a_node_killed_between_logits_and_upload_is_replaced(connected: Federation, tmp_path: Path) -> None:
    out = tmp_path / "run"
    chosen = int(stream(0, 1, "selection").choice(SITES, size=2, replace=False)[0])
    before = {f"site{number}": num_replies(connected, f"site{number}") for number in range(SITES)}
    start(connected, f'{BY_LOGITS} rounds=1 out="{out}"'.replace(f"timeout={TIMEOUT}", "timeout=150.0"))
    wait_until((out / "nodes.json").exists, "the nodes have numbers", connected)
    [victim] = [node["name"] for node in json.loads((out / "nodes.json").read_text()) if node["client"] == chosen]
    wait_until(lambda: num_replies(connected, victim) > before[victim], "the node has sent its logits", connected)
    connected.end(victim, at_once=True)
    wait_until((out / "summary.json").exists, "the run is over", connected)
    [record] = read_run(out).records
    assert sorted(record["considered"]) == [0, 1, 2]
    assert list(record["refused"]) == [str(chosen)]
    assert record["selected"] == sorted({0, 1, 2} - {chosen}), "the third node replaces it"


def test_a_killed_server_resumes_with_the_same_client_ids(connected: Federation, tmp_path: Path) -> None:
    """Nodes that stay connected, or reconnect with the same key, keep their client id."""
    out = tmp_path / "run"
    settings = f'{ALL_SITES} rounds=3 out="{out}"'
    start(connected, settings)
    wait_until(lambda: records(out), "the first round is over", connected)
    connected.end("superlink", at_once=True)
    before, clients = records(out), (out / "nodes.json").read_text()
    assert len(before) < 3
    connected.start_superlink()
    start(connected, settings)
    wait_until((out / "summary.json").exists, "the run is over", connected)
    made = read_run(out).records
    assert [record["round"] for record in made] == [1, 2, 3]
    assert made[: len(before)] == before
    assert [record["selected"] for record in made] == [[0, 1, 2]] * 3
    assert (out / "nodes.json").read_text() == clients


def test_nodes_that_come_and_go(connected: Federation, tmp_path: Path) -> None:
    """Every few seconds a node is ended or killed and started again. FILFL_CHURN_SECONDS=600 does so for ten minutes.

    A killed node can return only when the SuperLink has missed its heartbeats; until then, it exits when it connects.
    The last test of this file, because its run does not end.
    """
    out, seconds = tmp_path / "run", float(os.environ.get("FILFL_CHURN_SECONDS", "30"))
    start(connected, f'sites={SITES} noisy=0.34 k=2 filter="prune" rounds=100000 timeout=20 wait={TIMEOUT} out="{out}"')
    wait_until(lambda: records(out), "the first round is over", connected)
    rng, end = random.Random(0), time.monotonic() + seconds
    while time.monotonic() < end:
        number = rng.randrange(SITES)
        if f"site{number}" in connected.processes:
            connected.end(f"site{number}", at_once=rng.random() < 0.5)
        time.sleep(rng.uniform(0, 4))
        start_missing_nodes(connected)
        time.sleep(rng.uniform(0, 4))
    during = len(records(out))

    def recovered() -> bool:
        start_missing_nodes(connected)
        return any(record["num_available"] == SITES and not record["refused"] for record in records(out)[during:])

    wait_until(recovered, "all nodes take part again", connected)
    made = records(out)
    lost = sum(bool(record["refused"]) for record in made[:during])
    print(f"{during} rounds in {seconds:g} s, {lost} of them with a node that was lost")
    assert [record["round"] for record in made] == list(range(1, len(made) + 1))
    assert {k for record in made for k in record["selected"]} <= {0, 1, 2}, "a node that returns keeps its number"


def start_missing_nodes(federation: Federation) -> None:
    for number in range(SITES):
        name = f"site{number}"
        if name in federation.processes and federation.processes[name].poll() is not None:
            federation.end(name)
        if name not in federation.processes:
            federation.start_node(number, of=SITES)


def start(federation: Federation, settings: str) -> None:
    federation.flwr("run", str(APP), LINK, "-c", settings, timeout=TIMEOUT)


def num_replies(federation: Federation, name: str) -> int:
    """The number of replies that a node has sent."""
    return federation.log(name).read_text().count("Sent successfully")


def nodes(federation: Federation) -> list[dict[str, Any]]:
    """The nodes registered with the SuperLink, in the order of registration."""
    listed = json.loads(federation.flwr("supernode", "list", LINK, "--format", "json"))["nodes"]
    return [node for node in listed if node["status"] != "unregistered"]


def records(out: Path) -> list[dict[str, Any]]:
    """The records written so far; an incomplete last line is ignored."""
    path = out / "rounds.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def client(out: Path, name: str) -> int:
    with (out / "clients.csv").open(newline="") as file:
        return next(int(row["id"]) for row in csv.DictReader(file) if row["name"] == name)


def processes_of(folder: Path) -> list[int]:
    return loopback.living(*folder.iterdir())


def wait_until(holds: Callable[[], object], what: str, federation: Federation | None = None) -> None:
    deadline = time.monotonic() + TIMEOUT
    while not holds():
        if time.monotonic() > deadline:
            log = federation.log("superlink").read_text()[-4000:] if federation else ""
            pytest.fail(f"timed out after {TIMEOUT:g} s waiting until {what}\n{log}")
        time.sleep(0.5)
