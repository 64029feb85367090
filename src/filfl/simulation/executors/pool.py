"""A pool of worker processes for simulated clients: how they start, fail and are replaced."""

import json
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import send_handle
from typing import Any

from filfl.core.clients import Failure
from filfl.errors import RunError
from filfl.simulation.executors.shared import Segment

# Not multiprocessing's spawn, which imports the user's script again.
BOOT = (
    "import json, sys; setup = json.loads(sys.argv[1]); sys.path[:] = setup['path']; "
    "from filfl.simulation.executors.worker import main; main(setup)"
)
OUT_OF_MEMORY = "; -9 often means that the machine ran out of memory"
GRACE = 5.0
"""Seconds between closing a worker's pipe and killing it."""


class CannotRun(RunError):
    """Raised if an executor is not available; the message has the reason."""


@dataclass(eq=False)
class Worker:
    """One process, its pipe, and its current task."""

    process: subprocess.Popen[bytes]
    pipe: Connection
    ready: bool = False
    client: int | None = None
    stack: Segment | None = None
    """The memory that it currently writes results to."""


class Pool:
    """At most `size` workers with the same setup, until the pool is closed."""

    def __init__(self, size: int, setup: Mapping[str, Any], descriptors: Sequence[int]) -> None:
        """Start the workers; `setup` is for their `main`, `descriptors` are the file descriptors they inherit."""
        self._size = size
        self._setup = setup
        self._descriptors = descriptors
        self._workers: list[Worker] = []
        try:
            self._start_missing()
            # If one worker can start, all can: the others may become ready later.
            while not any(worker.ready for worker in self._workers):
                self._receive({}, set())
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the workers, even during a task."""
        for worker in self._workers:
            worker.process.kill()
        while self._workers:
            self._end(self._workers[-1], grace=0.0)

    def request(self, tasks: Mapping[int, Sequence[Any]], stack: Segment | None = None) -> dict[int, Any]:
        """Every client's reply, or its `Failure`. Tasks are given in their order to the workers that are free.

        A task whose worker dies is tried once more. Results that are not plain values are written to `stack`.
        """
        waiting = deque(tasks)
        replies: dict[int, Any] = {}
        deaths: set[int] = set()
        try:
            while len(replies) < len(tasks):
                self._start_missing()
                for worker in [w for w in self._workers if w.ready and w.client is None]:
                    if waiting:
                        worker.client = waiting.popleft()
                        try:
                            self._send(worker, tasks[worker.client], stack)
                        except ConnectionError:  # it died while it was idle
                            self._end(worker)
                            waiting.appendleft(worker.client)
                waiting.extendleft(self._receive(replies, deaths))
        except CannotRun as error:
            raise RunError(
                f"{error}, and there is no other; the run ended, but its finished rounds are stored if it has a "
                "directory: run again with --resume to continue it"
            ) from None
        finally:
            for worker in [w for w in self._workers if w.client is not None]:
                self._end(worker, grace=0.0)
        return replies

    def _send(self, worker: Worker, task: Sequence[Any], stack: Segment | None) -> None:
        if stack is not None and worker.stack is not stack:
            worker.pipe.send(("stack", stack.specs))
            send_handle(worker.pipe, stack.fd, worker.process.pid)
            worker.stack = stack
        worker.pipe.send(tuple(task))

    def _receive(self, replies: dict[int, Any], deaths: set[int]) -> list[int]:
        """Wait for a message or the end of a worker; returns the clients whose task must be tried again.

        `deaths` are the clients whose worker died once.
        """
        again = []
        ready = wait([worker.pipe for worker in self._workers])
        for worker in [w for w in self._workers if w.pipe in ready]:
            try:
                kind, value = worker.pipe.recv()
            except (EOFError, OSError):
                code, client = self._end(worker), worker.client
                end = f"exit code {code}" + (OUT_OF_MEMORY if code == -signal.SIGKILL else "")
                if not worker.ready:
                    self._give_up_one(f"a worker process died while it started ({end})")
                elif client in deaths:
                    replies[client] = Failure(f"the worker process died twice ({end})")
                elif client is not None:
                    deaths.add(client)
                    again.append(client)
                continue
            if kind == "ready":
                worker.ready = True
            elif kind == "cannot":
                self._end(worker)
                self._give_up_one(f"a worker process cannot build the model: {value}")
            else:
                assert worker.client is not None
                replies[worker.client] = value
                worker.client = None
        return again

    def _start_missing(self) -> None:
        while len(self._workers) < self._size:
            ours, theirs = socket.socketpair()
            with theirs:
                pipe, fd = Connection(ours.detach()), theirs.fileno()
                setup = {**self._setup, "path": [p for p in sys.path if isinstance(p, str)], "pipe": fd}
                command = [sys.executable, "-P", "-c", BOOT, json.dumps(setup)]
                # Workers start with Ctrl-C blocked, so that it cannot interrupt them with a traceback.
                before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
                try:
                    given = [*self._descriptors, fd]
                    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=given)
                finally:
                    signal.pthread_sigmask(signal.SIG_SETMASK, before)
            self._workers.append(Worker(process, pipe))

    def _end(self, worker: Worker, grace: float = GRACE) -> int:
        """Remove a worker and wait for the end of its process; returns its exit code."""
        self._workers.remove(worker)
        worker.pipe.close()
        try:
            return worker.process.wait(grace)
        except subprocess.TimeoutExpired:
            worker.process.kill()
            return worker.process.wait()

    def _give_up_one(self, reason: str) -> None:
        """Use one worker less. Otherwise a worker that cannot start would be started again without end."""
        self._size -= 1
        if self._size == 0:
            raise CannotRun(reason)
