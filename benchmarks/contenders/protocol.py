"""How a contender talks with the harness: one JSON object a line, one round for every line "round".

    contender: {"ready": seconds since its start}
    harness:   round
    contender: {"seconds": ..., "cpu_seconds": ...}
    ...
    harness:   stop
    contender: {"peak_bytes": ..., and what proves the work: "steps": ..., "seen": ..., "loss": ...}

So the harness can ask all contenders in turn, and noise hits all alike. Whatever a framework prints goes to stderr.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from measure import CPUClock, peak_memory, seconds_since_start
from workloads import WORKLOADS


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    parser.add_argument("workload", choices=WORKLOADS)
    return parser


class Turns:
    """The contender's side of the conversation."""

    def __init__(self) -> None:
        self._answers = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)
        self._cpu = CPUClock()

    def ready(self) -> None:
        self._say(ready=seconds_since_start())

    def wait(self, before: Callable[[], object] = bool) -> bool:
        """Wait for a turn; False when there is none left. What is done `before` it is not measured."""
        if sys.stdin.readline().strip() != "round":
            self._peak = peak_memory()
            return False
        before()
        self._cpu.start()
        self._start = time.perf_counter()
        return True

    def done(self) -> None:
        """The round is over."""
        seconds = time.perf_counter() - self._start
        self._say(seconds=seconds, cpu_seconds=self._cpu.stop())

    def stop(self, **result: object) -> None:
        """What proves the work of all rounds, such as the loss of the final model on `workloads.probe`."""
        self._say(**result, peak_bytes=self._peak)

    def _say(self, **answer: object) -> None:
        print(json.dumps(answer), file=self._answers)
