"""`filfl watch`: a report that is updated while the runs are running, in a browser on this machine."""

from pathlib import Path

from filfl.commands.terminal import say
from filfl.report.html.server import LOOPBACK, LiveReport, open_server


def watch_command(directory: Path, port: int | None) -> None:
    report = LiveReport([directory])
    report.now()  # so that a missing directory is an error here, not in the browser
    with open_server(report, port) as server:
        say(f"Report of {directory}: http://{LOOPBACK}:{server.server_port}/ (Ctrl-C to stop)")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            say("")
