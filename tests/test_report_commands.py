"""`filfl report` and `filfl watch`, with a real run that grows while it is watched."""

import json
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from filfl.errors import RunError
from filfl.report.html.server import LiveReport, open_server

ENDLESS = """
name = "endless"
rounds = 100000
[data]
clients = 12
[model]
hidden = [8]
[filter]
size = 40
[selection]
k = 3
"""


@contextmanager
def process(arguments: list[str], where: Path, environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """A filfl command that is killed at the end of the block if it is still running."""
    started = subprocess.Popen(
        [sys.executable, "-m", "filfl", *arguments],
        cwd=where,
        env={**environment, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield started
    finally:
        if started.poll() is None:
            started.kill()
        started.wait()
        started.stdout.close()


def ask(address: str, headers: dict[str, str] | None = None) -> tuple[int, Any, str | None]:
    """Status, body and ETag of a response."""
    request = urllib.request.Request(address, headers=headers or {})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode(), answer.headers["ETag"]
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode(), error.headers["ETag"]


def wait_for(happened: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if found := happened():
            return found
        time.sleep(0.1)
    raise AssertionError("timed out")


def test_watch_follows_a_growing_run(tmp_path: Path, environment: dict[str, str]) -> None:
    (tmp_path / "endless.toml").write_text(ENDLESS)
    (tmp_path / "runs").mkdir()
    with process(["watch", "runs", "--port", "0"], tmp_path, environment) as watch:
        line = watch.stdout.readline()
        address = re.search(r"Report of runs: (http://127\.0\.0\.1:\d+/) \(Ctrl-C to stop\)", line).group(1)
        assert json.loads(ask(f"{address}data.json")[1])["sections"] == [], "no run has started"
        with process(["run", "endless.toml", "--out", "runs/r"], tmp_path, environment) as run:

            def rounds() -> int:
                sections = json.loads(ask(f"{address}data.json")[1])["sections"]
                return len(sections[0]["curves"]["accuracy"][0]["x"]) if sections else 0

            first = wait_for(rounds)
            assert wait_for(lambda: rounds() > first)
            run.kill()
            run.wait()
        status, body, mark = ask(f"{address}data.json")
        assert status == 200 and '"live":true' in body
        assert ask(f"{address}data.json", {"If-None-Match": mark}) == (304, "", mark), "nothing has changed"
        assert ask(address)[0] == 200 and "<!doctype html>" in ask(address)[1]
        assert ask(f"{address}other")[0] == 404
        assert ask(address, {"Host": "evil.example:80"})[0] == 403, "requests for another host are refused"
        (tmp_path / "runs").rename(tmp_path / "moved")
        assert ask(f"{address}data.json")[:2] == (
            503,
            "runs does not exist: give the directory of a run or of a comparison, such as runs/demo",
        )
        watch.send_signal(signal.SIGINT)
        rest = watch.communicate(timeout=60)[0]
    assert (watch.returncode, rest.strip()) == (0, "")


def test_a_port_in_use_is_an_error(tmp_path: Path) -> None:
    report = LiveReport([tmp_path])
    with open_server(report, None) as first, open_server(report, None) as second:
        assert first.server_port != second.server_port, "by default the next free port"
        assert first.server_address[0] == "127.0.0.1"
        with pytest.raises(RunError, match=f"port {first.server_port} cannot be used: .* choose another --port"):
            open_server(report, first.server_port)


def test_report_writes_a_page_and_prints_the_verdict(cli, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "benchmarks")
    from report_store import Size, write_comparison

    write_comparison(tmp_path / "c", Size(seeds=2, rounds=12, clients=10, available=6, k=2, period=3))
    shown = cli("report", "c", "-o", "page.html")
    assert re.search(r"filfl-[dr]gf has the highest final accuracy: \d\d\.\d ± \d\.\d % \(2 seeds\)", shown)
    assert re.search(r"report in a browser: page.html \(\d\.\d MB\)", shown)
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>") and page.rstrip().endswith("</html>")
    cli("report", "c/fedavg", "c/filfl-dgf/seed-1")
    assert (tmp_path / "report.html").exists()


def test_user_mistakes_end_in_an_error_message(cli, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "error: no run found in empty; give the directory of a run" in cli("report", "empty", code=1)
    assert "error: nowhere does not exist" in cli("report", "nowhere", code=1)
    assert "error: nowhere does not exist" in cli("watch", "nowhere", code=1)
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "config.toml").write_text('name = "r"')
    assert "cannot be written" in cli("report", "r", "-o", "missing/page.html", code=1)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_a_report_is_never_written_over_a_device(cli, tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "config.toml").write_text('name = "r"')
    assert "error: /dev/full cannot be written: No space left on device" in cli(
        "report", "r", "-o", "/dev/full", code=1
    )
    cli("report", "r", "-o", "/dev/null")
    assert Path("/dev/full").is_char_device() and Path("/dev/null").is_char_device()
