"""A whole federation on this machine, for practice: a SuperLink with TLS, three SuperNodes with keys, and one run.

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
"""What the flwr command calls the SuperLink."""
SETTINGS = 'sites=3 noisy=0.34 k=2 min-nodes=3 rounds={rounds} out="{out}"'
"""Digits on three sites, one of which has random labels."""


class Federation:
    """Processes on 127.0.0.1, in one folder, on ports that were free. Leaving it ends all of them, by their ids."""

    def __init__(self, folder: Path, insecure: bool = False) -> None:
        self.folder, self.insecure = folder, insecure
        self.certificates = folder / "certificates"
        self.superlink: subprocess.Popen[bytes] | None = None
        self.nodes: dict[int, subprocess.Popen[bytes]] = {}
        self._port = free_port()
        self._home = folder / "user"
        self._home.mkdir(parents=True)
        if not insecure:
            make_certificates(self.certificates)
        secure = f'root-certificates = "{self.certificates / "ca.crt"}"'
        connection = f'address = "127.0.0.1:{self._port}"\n{"insecure = true" if insecure else secure}\n'
        (self._home / "config.toml").write_text(f'[superlink]\ndefault = "{LINK}"\n\n[superlink.{LINK}]\n{connection}')

    def __enter__(self) -> "Federation":
        return self

    def __exit__(self, *_: object) -> None:
        before = {each: signal.signal(each, signal.SIG_IGN) for each in (signal.SIGINT, signal.SIGTERM)}
        try:
            for process in [*self.nodes.values(), *([self.superlink] if self.superlink else [])]:
                end(process)
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)

    def start_superlink(self, patience: float = 120) -> None:
        """Start it and wait until it answers. Started again, it knows the nodes that were registered."""
        command = ["flower-superlink", "--host", "127.0.0.1", "--port", str(self._port)]
        command += ["--database", str(self.folder / "superlink.db"), "--disable-runtime-dependency-installation"]
        if self.insecure:
            command.append("--insecure")
        else:
            command += ["--enable-supernode-auth", "--ssl-ca-certfile", str(self.certificates / "ca.crt")]
            command += ["--ssl-certfile", str(self.certificates / "server.pem")]
            command += ["--ssl-keyfile", str(self.certificates / "server.key")]
        self.superlink = self._start("superlink", command)
        deadline = time.monotonic() + patience
        while not self._answers():
            if self.superlink.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"the SuperLink did not start: see {self.log('superlink')}")
            time.sleep(0.2)

    def register(self, number: int) -> None:
        """Make a key for this site, and tell the SuperLink its public half."""
        make_key(self.key(number))
        self.flwr("supernode", "register", f"{self.key(number)}.pub", LINK, "--name", f"site{number}")

    def start_node(self, number: int, of: int) -> subprocess.Popen[bytes]:
        """Start the SuperNode of this site, with its key."""
        command = ["flower-supernode", "--superlink", f"127.0.0.1:{self._port}"]
        command += ["--host", "127.0.0.1", "--port", str(free_port())]
        command += ["--node-config", f"partition-id={number} num-partitions={of}"]
        if self.insecure:
            command.append("--insecure")
        else:
            command += ["--root-certificates", str(self.certificates / "ca.crt")]
            command += ["--auth-supernode-private-key", str(self.key(number))]
        self.nodes[number] = self._start(f"site{number}", command)
        return self.nodes[number]

    def flwr(self, *arguments: str, quiet: bool = True, timeout: float = 120) -> str:
        """Call the flwr command as a user of this SuperLink would."""
        out = subprocess.PIPE if quiet else None
        done = subprocess.run(
            ["flwr", *arguments], env=self.environment(self._home), stdout=out, stderr=out, text=True, timeout=timeout
        )
        if done.returncode:
            raise SystemExit(f"flwr {' '.join(arguments)} failed\n{done.stdout or ''}{done.stderr or ''}")
        return done.stdout or ""

    def key(self, number: int) -> Path:
        return self.folder / f"site{number}" / "key"

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def environment(self, home: Path) -> dict[str, str]:
        """The programs beside this Python, a folder of its own for Flower, and nothing that needs the internet."""
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
        return {**os.environ, **quiet, "PATH": path, "FLWR_HOME": str(home)}

    def _start(self, name: str, command: Sequence[str]) -> subprocess.Popen[bytes]:
        home = self.folder / name
        home.mkdir(exist_ok=True)
        with self.log(name).open("ab") as log:
            return subprocess.Popen(
                command,
                env=self.environment(home),
                cwd=home,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # a Ctrl-C at the keyboard is for us, who then end it in order
            )

    def _answers(self) -> bool:
        trusted = None if self.insecure else ssl.create_default_context(cafile=str(self.certificates / "ca.crt"))
        scheme = "http" if self.insecure else "https"
        try:
            with urllib.request.urlopen(f"{scheme}://127.0.0.1:{self._port}/health", timeout=5, context=trusted):
                return True
        except OSError:
            return False


def end(process: subprocess.Popen[bytes], at_once: bool = False, patience: float = 20) -> None:
    """End a process and everything that it started: SuperExec, ServerApp, ClientApps.

    at_once: as if its machine had lost power.
    """
    family = descendants({process.pid})
    if at_once:
        for pid in family:
            _send(pid, signal.SIGKILL)
    elif process.poll() is None:
        process.terminate()
    deadline = time.monotonic() + patience
    while process.poll() is None or family & running().keys():
        family |= descendants(family)  # one may have been started in the meantime
        if time.monotonic() > deadline:
            for pid in family:
                _send(pid, signal.SIGKILL)
        time.sleep(0.1)


def running() -> dict[int, int]:
    """The processes of this machine: id -> its parent's id. The dead that nobody has buried do not count."""
    lines = subprocess.run(["ps", "-A", "-o", "pid=,ppid=,stat="], capture_output=True, text=True, check=True).stdout
    rows = (line.split() for line in lines.splitlines())
    return {int(pid): int(parent) for pid, parent, status in rows if not status.startswith("Z")}


def descendants(pids: set[int]) -> set[int]:
    """These processes, their children, and so on."""
    parents = running()
    family = set(pids)
    while new := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= new
    return family


def _send(pid: int, what: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, what)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def show(out: Path) -> None:
    """What the filter made of the sites, by the names that they were registered with."""
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
    parser = argparse.ArgumentParser(description="A whole federation on this machine: one SuperLink, three SuperNodes.")
    parser.add_argument("folder", nargs="?", type=Path, help="a new folder for keys, logs and results (default: /tmp)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--insecure", action="store_true", help="plain text: no certificates, and anybody may join")
    arguments = parser.parse_args()
    for each in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, interrupted)
    folder = (arguments.folder or Path(tempfile.mkdtemp(prefix="federation-"))).resolve()
    if folder.exists() and any(folder.iterdir()):
        raise SystemExit(f"{folder} is not empty: choose a new folder")
    for program in ("flower-superlink", "ps"):
        if shutil.which(program, path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}") is None:
            raise SystemExit(f"{program} is not installed: pip install 'filfl[flower]', and procps for ps")
    out = folder / "run"
    print(f"Everything is in {folder}", flush=True)
    with Federation(folder, arguments.insecure) as federation:
        print("Starting the SuperLink", flush=True)
        federation.start_superlink()
        for number in range(3):
            if not arguments.insecure:
                print(f"Registering the key of site{number}", flush=True)
                federation.register(number)
            federation.start_node(number, of=3)
        print("Running the app: a round takes about half a minute", flush=True)
        settings = SETTINGS.format(rounds=arguments.rounds, out=out)
        federation.flwr("run", str(APP), LINK, "--stream", "-c", settings, quiet=False, timeout=3600)
        if not (out / "summary.json").exists():
            raise SystemExit(f"the run did not finish: see above, and the logs in {folder}")
        show(out)
        report = ["filfl", "report", str(out), "--out", str(folder / "report.html")]
        subprocess.run(report, env=federation.environment(folder), check=True)
    print("Everything that was started has been stopped.")


if __name__ == "__main__":
    main()
