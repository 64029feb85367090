"""`filfl watch`: the report of runs that are still going, in a browser on this machine."""

from pathlib import Path

from filfl.commands.terminal import say
from filfl.report.html.server import LOOPBACK, LiveReport, open_server


def watch_command(directory: Path, port: int | None) -> None:
    report = LiveReport([directory])
    report.now()  # a directory that is not there is said here, not in the browser
    with open_server(report, port) as server:
        say(f"{directory} is shown at http://{LOOPBACK}:{server.server_port}/ (Ctrl-C to end)")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            say("")
