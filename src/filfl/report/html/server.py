"""The report of runs in progress, served to a browser on this machine only."""

from collections.abc import Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socket import SHUT_RDWR
from threading import Lock
from time import monotonic, time_ns
from typing import Any

from filfl.errors import RunError
from filfl.report.html.collect import Section, collect
from filfl.report.html.render import render, report_data, show_run, to_script
from filfl.runs.reader import Run, scan_run, signature

LOOPBACK = "127.0.0.1"
FIRST_PORT, PORTS = 8000, 20
"""Without --port, the first free one of these ports is used."""
MOST_OPEN = 32
"""The number of connections that are served at the same time."""
SECONDS = 5.0
"""How long a request may take to arrive."""


class LiveReport:
    """The data of a report, computed again only when a file has changed. `mark` identifies its state."""

    def __init__(self, directories: Sequence[Path]) -> None:
        self._directories = directories
        self._runs: dict[Path, tuple[tuple[tuple[int, int], ...], Run]] = {}
        self._shown: dict[Path, tuple[Run, int, dict[str, Any]]] = {}
        self._sections: list[Section] | None = None
        self._data: dict[str, Any] = {}
        self._lock = Lock()

    def now(self) -> dict[str, Any]:
        with self._lock:
            sections = collect(self._directories, self._read)
            if sections != self._sections:
                self._data = {**report_data(sections, True, self._show), "mark": f"{time_ns():x}"}
                self._sections = sections
            return self._data

    def _read(self, directory: Path) -> Run:
        """A run, from memory if its files have not changed. A change while it is read shows in the next signature."""
        seen = signature(directory)
        if directory not in self._runs or self._runs[directory][0] != seen:
            self._runs[directory] = (seen, scan_run(directory))
        return self._runs[directory][1]

    def _show(self, run: Run, most: int) -> dict[str, Any]:
        """What the page shows of a run, from memory if it is the same run."""
        known = self._shown.get(run.directory)
        if known is None or known[0] is not run or known[1] != most:
            known = self._shown[run.directory] = (run, most, show_run(run, most))
        return known[2]


def open_server(report: LiveReport, port: int | None) -> ThreadingHTTPServer:
    """A server of the report that only this machine can reach; call `serve_forever` to start it."""
    ports = [port] if port is not None else [*range(FIRST_PORT, FIRST_PORT + PORTS), 0]
    for candidate in ports:
        try:
            return _Server(candidate, report)
        except OSError as error:
            reason = error.strerror
    raise RunError(f"port {port} cannot be used: {reason}; choose another --port, or leave it out")


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, port: int, report: LiveReport) -> None:
        super().__init__((LOOPBACK, port), _Handler)
        self.report = report
        self._incomplete: dict[Any, float] = {}
        """When each connection was accepted whose request has not arrived completely."""
        self._open: set[Any] = set()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a new thread. Above MOST_OPEN connections, a new one is closed at once."""
        self.close_late()
        if len(self._open) >= MOST_OPEN:
            self.shutdown_request(request)
            return
        self._open.add(request)
        self._incomplete[request] = monotonic()
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self.arrived(request)
        self._open.discard(request)
        super().shutdown_request(request)

    def arrived(self, request: Any) -> None:
        """The request of this connection is complete."""
        self._incomplete.pop(request, None)

    def service_actions(self) -> None:
        """Called by `serve_forever` about twice per second."""
        self.close_late()

    def close_late(self) -> None:
        """End the connections that did not send a complete request in time; their threads then end."""
        for request, start in list(self._incomplete.items()):
            if monotonic() - start > SECONDS:
                with suppress(OSError):
                    request.shutdown(SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that closes the connection early is not an error."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = SECONDS
    """For each read and write, so that a browser that stops reading does not hold its thread."""

    def do_GET(self) -> None:
        self.server.arrived(self.connection)
        # A browser leaves out the port if it is 80.
        if self.headers.get("Host", "").partition(":")[0].lower() not in (LOOPBACK, "localhost"):
            # DNS rebinding: another site's name that resolves to this machine
            self._answer(403, "text/plain", "this page is only available on this machine")
        elif self.path not in ("/", "/data.json"):
            self._answer(404, "text/plain", "not found: the only pages are / and /data.json")
        else:
            try:
                data = self.server.report.now()
            except RunError as error:
                self._answer(503, "text/plain", str(error))
                return
            if self.path == "/":
                self._answer(200, "text/html", render(data))
            elif self.headers.get("If-None-Match") == data["mark"]:
                self._answer(304, "application/json", "", data["mark"])
            else:
                self._answer(200, "application/json", to_script(data), data["mark"])

    def _answer(self, status: int, kind: str, text: str, mark: str | None = None) -> None:
        body = text.encode("utf-8")
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        if mark:
            self.send_header("ETag", mark)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """No log line per request: the page asks every two seconds."""
