"""Worker processes that share questions about clients among them: how they start, die, and are replaced."""

import json
import signal
import socket
import subprocess
import sys
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import send_handle
from typing import Any

from filfl.clients import Failure
from filfl.simulation.setup import CannotRun
from filfl.simulation.shared import Segment, Spec

# Not multiprocessing's spawn, which imports the user's script again.
BOOT = (
    "import json, sys; told = json.loads(sys.argv[1]); sys.path[:] = told['path']; "
    "from filfl.simulation.worker import main; main(told)"
)
LAST_BREATH = 5.0
"""Seconds that a process may take from closing its pipe to its end, before it is killed."""


@dataclass(eq=False)
class Worker:
    """One process, its pipe, and what it has in hand."""

    process: subprocess.Popen[bytes]
    pipe: Connection
    ready: bool = False
    client: int | None = None
    stack: Segment | None = None
    """The memory that it was last told to put results into."""


class Pool:
    """`size` workers at most, all told the same, until they are closed."""

    def __init__(self, size: int, told: Mapping[str, Any], descriptors: Sequence[int]) -> None:
        """Start the workers; `told` is for their `main`, with the file descriptors that they get for good."""
        self._size = size
        self._told = told
        self._descriptors = descriptors
        self._workers: list[Worker] = []
        try:
            self._start_missing()
            # What one worker can do, all can: the others may come later.
            while not any(worker.ready for worker in self._workers):
                self._listen({}, Counter())
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the workers, whatever they do: nothing of theirs outlives them."""
        for worker in self._workers:
            worker.process.kill()
        while self._workers:
            self._end(self._workers[-1], grace=0.0)

    def ask(
        self, questions: Mapping[int, Sequence[Any]], stack: tuple[Segment, Sequence[Spec]] | None
    ) -> dict[int, Any]:
        """Every client's answer, or its `Failure`. Questions are given out in their order to whoever is free.

        A question whose worker dies is asked once more; `stack` is where results go that are no plain values.
        """
        waiting = deque(questions)
        answers: dict[int, Any] = {}
        deaths: Counter[int] = Counter()
        try:
            while len(answers) < len(questions):
                self._start_missing()
                for worker in [w for w in self._workers if w.ready and w.client is None]:
                    if waiting:
                        worker.client = waiting.popleft()
                        if not self._give(worker, questions[worker.client], stack):
                            waiting.appendleft(worker.client)
                waiting.extendleft(self._listen(answers, deaths))
        finally:
            for worker in [w for w in self._workers if w.client is not None]:
                self._end(worker, grace=0.0)
        return answers

    def _give(self, worker: Worker, question: Sequence[Any], stack: tuple[Segment, Sequence[Spec]] | None) -> bool:
        """Whether the question reached the worker: it may have died while it had nothing to do."""
        try:
            if stack is not None and worker.stack is not stack[0]:
                segment, specs = stack
                worker.pipe.send(("stack", segment.nbytes, specs))
                send_handle(worker.pipe, segment.fd, worker.process.pid)
                worker.stack = segment
            worker.pipe.send(tuple(question))
        except ConnectionError:
            self._end(worker)
            return False
        return True

    def _listen(self, answers: dict[int, Any], deaths: Counter[int]) -> list[int]:
        """Wait until something happens; returns the clients that have to be asked again."""
        again = []
        ready = wait([worker.pipe for worker in self._workers])
        for worker in [w for w in self._workers if w.pipe in ready]:
            try:
                what, value = worker.pipe.recv()
            except (EOFError, OSError):
                code, client = self._end(worker), worker.client
                if client is None:
                    if not worker.ready:
                        self._give_up_one(f"a worker process died while it started ({_says(code)})")
                    continue
                deaths[client] += 1
                if deaths[client] > 1:
                    answers[client] = Failure(f"its worker process died twice ({_says(code)})")
                else:
                    again.append(client)
                continue
            if what == "ready":
                worker.ready = True
            elif what == "cannot":
                self._end(worker)
                self._give_up_one(f"a worker process cannot make the model: {value}")
            else:
                assert worker.client is not None
                answers[worker.client] = Failure(value) if what == "failure" else value
                worker.client = None
        return again

    def _start_missing(self) -> None:
        while len(self._workers) < self._size:
            self._workers.append(self._start())

    def _start(self) -> Worker:
        ours, theirs = socket.socketpair()
        with theirs:
            pipe = Connection(ours.detach())
            told = {**self._told, "path": [p for p in sys.path if isinstance(p, str)], "pipe": theirs.fileno()}
            # Workers are born deaf to Ctrl-C, so that not even their start says anything about it.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
            try:
                process = subprocess.Popen(
                    [sys.executable, "-P", "-c", BOOT, json.dumps(told)],
                    stdin=subprocess.DEVNULL,
                    pass_fds=[*self._descriptors, theirs.fileno()],
                )
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return Worker(process, pipe)

    def _end(self, worker: Worker, grace: float = LAST_BREATH) -> int:
        """Take a worker out, and see that its process is gone; returns its exit code."""
        self._workers.remove(worker)
        worker.pipe.close()
        try:
            return worker.process.wait(grace)
        except subprocess.TimeoutExpired:
            worker.process.kill()
            return worker.process.wait()

    def _give_up_one(self, reason: str) -> None:
        """A worker that cannot start is not started again, or there would be no end to it."""
        self._size -= 1
        if self._size == 0:
            raise CannotRun(reason)


def _says(code: int) -> str:
    return f"exit code {code}" + ("; -9 often means that memory ran out" if code == -signal.SIGKILL else "")
