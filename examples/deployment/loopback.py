"""A complete federation on this machine, to try things out: a SuperLink with TLS, three SuperNodes with keys, one run.

python loopback.py
"""

import argparse
import csv
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType

from certificates import make_certificates, make_key

APP = Path(__file__).resolve().parent.parent / "flower-filfl"
LINK = "here"
"""The name of the SuperLink in the flwr command."""
SETTINGS = 'filter="dgf" k=2 num-server-rounds={rounds} out="{out}"'
"""Three sites, one of which has random labels."""
INTERRUPTIONS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Federation:
    """Processes on free ports of 127.0.0.1, with all files in one folder. Leaving the context ends all of them."""

    def __init__(self, folder: Path, insecure: bool = False) -> None:
        self.folder, self.insecure = folder, insecure
        self.certificates = folder / "certificates"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        """By name: superlink, site0, site1, ..."""
        self.port = free_port()
        self._home = folder / "user"
        self._home.mkdir(parents=True)
        if not insecure:
            make_certificates(self.certificates)
        secure = f'root-certificates = "{self.certificates / "ca.crt"}"'
        connection = f'address = "127.0.0.1:{self.port}"\n{"insecure = true" if insecure else secure}\n'
        (self._home / "config.toml").write_text(f'[superlink]\ndefault = "{LINK}"\n\n[superlink.{LINK}]\n{connection}')

    def __enter__(self) -> "Federation":
        return self

    def __exit__(self, *_: object) -> None:
        before = {each: signal.signal(each, signal.SIG_IGN) for each in INTERRUPTIONS}
        try:
            self.end(*self.processes)
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)

    def start_superlink(self, *more: str, timeout: float = 120) -> None:
        """Start the SuperLink and wait until it answers. A restarted one still knows the registered nodes.

        more: additional arguments of flower-superlink.
        """
        command = ["flower-superlink", "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--database", str(self.folder / "superlink.db"), "--disable-runtime-dependency-installation", *more]
        if self.insecure:
            command.append("--insecure")
        else:
            command += ["--enable-supernode-auth", "--ssl-ca-certfile", str(self.certificates / "ca.crt")]
            command += ["--ssl-certfile", str(self.certificates / "server.pem")]
            command += ["--ssl-keyfile", str(self.certificates / "server.key")]
        superlink = self._start("superlink", command)
        deadline = time.monotonic() + timeout
        while not self._answers():
            if superlink.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"the SuperLink did not start: see {self.log('superlink')}")
            time.sleep(0.2)

    def register(self, number: int) -> None:
        """Create a key for this site and register its public half with the SuperLink."""
        make_key(self.key(number))
        self.flwr("supernode", "register", f"{self.key(number)}.pub", LINK, "--name", f"site{number}")

    def start_node(self, number: int, of: int = 0, data: Path | None = None, port: int | None = None) -> None:
        """Start the SuperNode of this site, with its key.

        data: the file with its data; without one, the app divides its own data among `of` sites.
        port: the port to connect to, if it is not that of the SuperLink itself (a proxy).
        """
        command = ["flower-supernode", "--superlink", f"127.0.0.1:{port or self.port}"]
        command += ["--host", "127.0.0.1", "--port", str(free_port())]
        where = f'data-path="{data}"' if data else f"partition-id={number} num-partitions={of}"
        command += ["--node-config", where]
        if self.insecure:
            command.append("--insecure")
        else:
            command += ["--root-certificates", str(self.certificates / "ca.crt")]
            command += ["--auth-supernode-private-key", str(self.key(number))]
        self._start(f"site{number}", command)

    def wait_for_nodes(self, number: int, timeout: float = 120) -> None:
        """Wait until this many SuperNodes are connected."""
        deadline = time.monotonic() + timeout
        while self.flwr("supernode", "list", LINK, "--format", "json").count('"online"') < number:
            if time.monotonic() > deadline:
                raise SystemExit(f"fewer than {number} SuperNodes connected: see the logs in {self.folder}")

    def end(self, *names: str, at_once: bool = False) -> None:
        """End some of the processes and their children: SuperExec, ServerApp, ClientApps."""
        end_all(*(self.folder / name for name in names), at_once=at_once)
        for name in names:
            self.processes.pop(name).wait()

    def flwr(self, *arguments: str, quiet: bool = True, timeout: float = 120) -> str:
        """Call the flwr command as a user of this SuperLink."""
        out = subprocess.PIPE if quiet else None
        done = subprocess.run(
            ["flwr", *arguments], env=environment(self._home), stdout=out, stderr=out, text=True, timeout=timeout
        )
        if done.returncode:
            raise SystemExit(f"flwr {' '.join(arguments)} failed\n{done.stdout or ''}{done.stderr or ''}")
        return done.stdout or ""

    def key(self, number: int) -> Path:
        return self.folder / f"site{number}" / "key"

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def _start(self, name: str, command: Sequence[str]) -> subprocess.Popen[bytes]:
        home = self.folder / name
        home.mkdir(exist_ok=True)
        with self.log(name).open("ab") as log:
            self.processes[name] = subprocess.Popen(
                command,
                env=environment(home),
                cwd=home,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C reaches only this script, which then ends the processes in order
            )
        return self.processes[name]

    def _answers(self) -> bool:
        trusted = None if self.insecure else ssl.create_default_context(cafile=str(self.certificates / "ca.crt"))
        scheme = "http" if self.insecure else "https"
        try:
            with urllib.request.urlopen(f"{scheme}://127.0.0.1:{self.port}/health", timeout=5, context=trusted):
                return True
        except OSError:
            return False


def environment(home: Path) -> dict[str, str]:
    """The environment of a Flower process: the programs of this Python, its own FLWR_HOME, and no internet access."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    return {**os.environ, **quiet, "PATH": path, "FLWR_HOME": str(home)}


def end_all(*homes: Path, at_once: bool = False, timeout: float = 20) -> None:
    """End the processes that have one of these FLWR_HOMEs: first with SIGTERM, after `timeout` seconds with SIGKILL.

    at_once: use SIGKILL immediately, as if their machine had lost power.
    """
    begun = time.monotonic()
    send = signal.SIGKILL if at_once else signal.SIGTERM
    asked: set[int] = set()
    while left := set(living(*homes)):
        waited = time.monotonic() - begun
        if waited > 2 * timeout:
            raise SystemExit(f"cannot end processes {sorted(left)}")
        if waited > timeout:
            send, asked = signal.SIGKILL, set()
        for pid in left - asked:
            with suppress(ProcessLookupError):
                os.kill(pid, send)
        asked |= left
        time.sleep(0.1)


def living(*homes: Path) -> list[int]:
    """The ids of the running processes that have one of these FLWR_HOMEs, which no other process has. The parent id
    does not identify them, since it changes when the parent is killed. Zombies do not count."""
    table = subprocess.run(["ps", "axeww", "-o", "pid=,stat=,command="], capture_output=True, check=True).stdout
    ids = []
    for line in table.decode(errors="replace").splitlines():
        if any(f" FLWR_HOME={home} " in f"{line} " for home in homes):
            pid, status, _ = line.split(maxsplit=2)
            if not status.startswith("Z"):
                ids.append(int(pid))
    return ids


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def show(out: Path) -> None:
    """Print the decisions of the filter, with the names under which the sites were registered."""
    with (out / "clients.csv").open(newline="") as file:
        names = {int(row["id"]): row["name"] for row in csv.DictReader(file)}
    for line in (out / "rounds.jsonl").read_text().splitlines():
        record = json.loads(line)
        kept, chosen = (", ".join(sorted(names[k] for k in record[key])) for key in ("filtered", "selected"))
        filtered = f"the filter kept {kept}; " if record["did_filter"] else ""
        print(f"round {record['round']}: {filtered}trained: {chosen}; accuracy {record['test_accuracy']:.3f}")


def interrupted(number: int, _: FrameType | None) -> None:
    raise SystemExit(128 + number)


def main() -> None:
    parser = argparse.ArgumentParser(description="A federation on this machine: one SuperLink, three SuperNodes.")
    parser.add_argument("folder", nargs="?", type=Path, help="a new folder for keys, logs and results (default: /tmp)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--insecure", action="store_true", help="run without TLS and without keys")
    arguments = parser.parse_args()
    for each in INTERRUPTIONS:
        signal.signal(each, interrupted)
    folder = (arguments.folder or Path(tempfile.mkdtemp(prefix="federation-"))).resolve()
    if folder.exists() and any(folder.iterdir()):
        raise SystemExit(f"{folder} is not empty: choose a new folder")
    for program in ("flower-superlink", "ps"):
        if shutil.which(program, path=environment(folder)["PATH"]) is None:
            raise SystemExit(f"{program} is not installed: pip install 'filfl[flower]', and procps for ps")
    out = folder / "run"
    print(f"All files are in {folder}", flush=True)
    subprocess.run([sys.executable, APP / "make_sites.py", folder / "data", "3"], check=True)
    with Federation(folder, arguments.insecure) as federation:
        print("Starting the SuperLink", flush=True)
        federation.start_superlink()
        for number in range(3):
            if not arguments.insecure:
                print(f"Registering the key of site{number}", flush=True)
                federation.register(number)
            federation.start_node(number, data=folder / "data" / f"site{number}.npz")
        print("Waiting for the SuperNodes", flush=True)
        federation.wait_for_nodes(3)
        print("Running the app: about half a minute per round", flush=True)
        settings = SETTINGS.format(rounds=arguments.rounds, out=out)
        federation.flwr("run", str(APP), LINK, "--stream", "-c", settings, quiet=False, timeout=3600)
        if not (out / "summary.json").exists():
            raise SystemExit(f"the run did not finish: see the output above and the logs in {folder}")
        show(out)
        report = ["filfl", "report", str(out), "--out", str(folder / "report.html")]
        subprocess.run(report, env=environment(folder), check=True)
    print("All processes have been stopped.")


if __name__ == "__main__":
    main()
