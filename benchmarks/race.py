"""Run contenders side by side, each in its own process.

They alternate round by round, so that noise affects all of them equally.
"""

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from peers import HERE, PEERS, Skip, python_of

TIMEOUT = 1800.0
"""Seconds after which a contender that does not reply is stopped."""
Result = dict[str, Any]


class Contender:
    """The process of a contender."""

    def __init__(self, python: Path | str, script: str, *arguments: str) -> None:
        self._stderr, log = tempfile.mkstemp(prefix="contender-")
        Path(log).unlink()
        self._process = subprocess.Popen(
            [str(python), str(HERE / "contenders" / script), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            bufsize=0,
            start_new_session=True,
        )
        self.rounds: list[dict[str, float]] = []
        try:
            self.start_up: float = self.answer()["ready"]
        except BaseException:
            self.close()
            raise

    def ask(self, what: str) -> Result:
        assert self._process.stdin
        with suppress(BrokenPipeError):  # `answer` reports why
            self._process.stdin.write(f"{what}\n".encode())
        return self.answer()

    def answer(self) -> Result:
        assert self._process.stdout
        if not select.select([self._process.stdout], [], [], TIMEOUT)[0]:
            raise Skip(f"no answer within {TIMEOUT:.0f} seconds")
        line = self._process.stdout.readline()
        if not line:
            raise Skip(f"ended early: {self._last_line()}")
        answer: Result = json.loads(line)
        return answer

    def close(self) -> None:
        """End the process and all processes of its session."""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(30)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process.stdout.close()
        os.close(self._stderr)

    def _last_line(self) -> str:
        end = os.fstat(self._stderr).st_size
        text = os.pread(self._stderr, 10_000, max(0, end - 10_000)).decode(errors="replace")
        lines = [line for line in text.splitlines() if line.strip()]
        return lines[-1].strip()[:200] if lines else "no output"


Starts = Mapping[str, Callable[[], Contender]]


def race(starts: Starts, rounds: int, warm_up: int, say: Callable[[str], None]) -> dict[str, Result]:
    """Start all contenders, ask them for one round in turn, and stop them. One that fails is reported and left out."""
    running: dict[str, Contender] = {}
    results: dict[str, Result] = {}

    def give_up(name: str, reason: object) -> None:
        results[name] = {"skipped": str(reason)}
        say(f"{name} is skipped: {reason}")
        if name in running:
            running.pop(name).close()

    try:
        for name, start in starts.items():
            try:
                running[name] = start()
                say(f"{name} is ready after {running[name].start_up:.1f} s")
            except Skip as reason:
                give_up(name, reason)
        for t in range(warm_up + rounds):
            # The order alternates, so that no contender always follows the same one.
            for name in sorted(running, reverse=bool(t % 2)):
                try:
                    running[name].rounds.append(running[name].ask("round"))
                except Skip as reason:
                    give_up(name, reason)
        for name in list(running):
            try:
                result = running[name].ask("stop")
            except Skip as reason:
                give_up(name, reason)
                continue
            timed = running[name].rounds[warm_up:]
            results[name] = {
                "start_up": running[name].start_up,
                "first_round": running[name].rounds[0]["seconds"],
                "seconds": [each["seconds"] for each in timed],
                "cpu_seconds": [each["cpu_seconds"] for each in timed],
                **result,
            }
    finally:
        for contender in running.values():
            contender.close()
    return {name: results[name] for name in starts}


def training_contenders(workload: str, modes: Sequence[str], peers: Sequence[str], cores: int) -> Starts:
    """The training contenders: the bare loop with one thread and with all, filfl, and the peers."""

    def of(script: str, *arguments: str) -> Callable[[], Contender]:
        return lambda: Contender(sys.executable, script, workload, *arguments)

    def peer(name: str) -> Callable[[], Contender]:
        return lambda: Contender(python_of(name), f"peer_{name}.py", workload)

    return {
        "bare, 1 thread": of("bare.py"),
        **({f"bare, {cores} threads": of("bare.py", "--threads", str(cores))} if cores > 1 else {}),
        **{("filfl" if mode == "auto" else f"filfl, {mode}"): of("ours.py", "--mode", mode) for mode in modes},
        **{PEERS[name].title: peer(name) for name in peers},
    }
