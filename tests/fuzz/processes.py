"""Signals and kills: a run that is ended at any moment, politely or not, can be resumed and has the same bytes."""

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from abc import abstractmethod
from pathlib import Path
from typing import ClassVar

from .campaign import Part, Wrong

CONFIG = """
name = "run"
rounds = 30
[data]
clients = 8
[model]
hidden = [6]
[filter]
size = 30
period = 2
[selection]
k = 3
[execution]
mode = "MODE"
workers = 2
"""
FILES = ("rounds.jsonl", "model.safetensors", "clients.csv", "config.toml")


class _Ended(Part):
    """A real process that is ended at a random moment, and then resumed."""

    slow = True
    mode: ClassVar[str] = "serial"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        (folder / "run.toml").write_text(CONFIG.replace("MODE", self.mode))
        start = time.monotonic()
        code, shown = self._wait(self._start("good"))
        if code:
            raise Wrong(f"the run without a disturbance ends with {code}: {shown}")
        self.seconds = time.monotonic() - start

    def case(self, rng: random.Random) -> None:
        try:
            for _ in range(rng.randint(1, 2)):
                process = self._start("run", "--resume")
                self._wait_for_a_round(process, rng)
                self.end(process, rng)
                code, shown = self._wait(process)
                if "Traceback" in shown or "Exception ignored" in shown:
                    raise Wrong(f"a traceback after the end with {code}: {shown}")
            code, shown = self._wait(self._start("run", "--resume"))
            if code:
                raise Wrong(f"--resume ends with {code}: {shown}")
            for name in FILES:
                if (self.folder / "run" / name).read_bytes() != (self.folder / "good" / name).read_bytes():
                    raise Wrong(f"{name} has other bytes after --resume")
        finally:
            shutil.rmtree(self.folder / "run", ignore_errors=True)

    def _wait_for_a_round(self, process: subprocess.Popen[str], rng: random.Random) -> None:
        """Wait for the next record and a moment longer: most of the time before it goes into imports. Sometimes do not
        wait for it."""
        if rng.random() < 0.1:
            time.sleep(1 + 5 * rng.random())
            return
        records = self.folder / "run" / "rounds.jsonl"
        size = records.stat().st_size if records.exists() else 0
        deadline = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < deadline:
            if records.exists() and records.stat().st_size > size:
                break
            time.sleep(0.005)
        time.sleep(rng.random() * 0.5)

    @abstractmethod
    def end(self, process: subprocess.Popen[str], rng: random.Random) -> None:
        """End the process at this moment."""

    def _start(self, out: str, *more: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "filfl.cli", "run", "run.toml", "--out", out, *more]
        return subprocess.Popen(
            command,
            cwd=self.folder,
            env={**os.environ, "NO_COLOR": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            # A shell starts background jobs with SIGINT ignored.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )

    def _wait(self, process: subprocess.Popen[str]) -> tuple[int, str]:
        try:
            shown, _ = process.communicate(timeout=120)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            raise Wrong("the process does not end") from None
        return process.returncode, shown


class Signals(_Ended):
    name = "signals"
    mode = "processes"

    def end(self, process: subprocess.Popen[str], rng: random.Random) -> None:
        kind = rng.choice((signal.SIGINT, signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
        for _ in range(rng.randint(1, 4) if kind == signal.SIGINT else 1):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, kind)
            time.sleep(rng.random() * 0.2)


class Kills(_Ended):
    name = "kills"

    def end(self, process: subprocess.Popen[str], rng: random.Random) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
