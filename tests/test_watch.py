"""The server of `filfl watch`: who is answered, and what half-open connections can hold."""

import http.client
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from filfl.report.html import server
from filfl.report.html.server import LOOPBACK, LiveReport, open_server


@pytest.fixture
def port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The port of a running server, which waits a second for a request."""
    monkeypatch.setattr(server, "SECONDS", 1.0)
    with open_server(LiveReport([tmp_path]), 0) as opened:
        thread = threading.Thread(target=opened.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield opened.server_port
        finally:
            opened.shutdown()
            thread.join()


def status(port: int, host: str | None) -> int:
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=30)
    connection.putrequest("GET", "/other", skip_host=True)
    if host is not None:
        connection.putheader("Host", host)
    connection.endheaders()
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer.status


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "LOCALHOST", "127.0.0.1:80", "localhost:8000"])
def test_a_browser_on_this_machine_is_answered_with_and_without_a_port(port: int, host: str) -> None:
    assert status(port, host) == 404, "it is answered; there is no such page"


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", None, ":80"])
def test_other_hosts_are_refused(port: int, host: str | None) -> None:
    assert status(port, host) == 403


def test_half_open_requests_hold_neither_threads_nor_the_server(port: int) -> None:
    before = threading.active_count()
    opened = [socket.create_connection((LOOPBACK, port), timeout=30) for _ in range(100)]
    try:
        for each in opened:
            try:
                each.sendall(b"GET / HTTP/1.1\r\nHost: loc")
            except OSError:
                continue  # it was closed at once
        deadline = time.monotonic() + 30
        most = 0
        while time.monotonic() < deadline:
            most = max(most, threading.active_count() - before)
            try:
                if status(port, "localhost") == 404:
                    break
            except (ConnectionError, http.client.HTTPException):
                time.sleep(0.1)
        else:
            raise AssertionError("the server does not answer any more")
        assert most <= server.MOST_OPEN
        while threading.active_count() > before and time.monotonic() < deadline:
            time.sleep(0.05)
        assert threading.active_count() == before, "late connections are closed, and their threads end"
    finally:
        for each in opened:
            each.close()


def test_a_request_that_never_ends_is_cut_off(port: int) -> None:
    with socket.create_connection((LOOPBACK, port), timeout=30) as slow:
        start = time.monotonic()
        try:
            while time.monotonic() - start < 30:
                slow.sendall(b"a")
                time.sleep(0.2)
        except OSError:
            return
    raise AssertionError("a byte now and then keeps the connection open")
