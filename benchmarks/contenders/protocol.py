"""The protocol between a contender and the harness: one JSON object per line, one round per line "round".

    contender: {"ready": seconds since its start}
    harness:   round
    contender: {"seconds": ..., "cpu_seconds": ...}
    ...
    harness:   stop
    contender: {"peak_bytes": ..., and the evidence of the work: "steps": ..., "seen": ..., "loss": ...}

The harness can then ask the contenders in turn, so that noise affects all of them equally. The output of a framework
goes to stderr.
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
    """The contender's side of the protocol."""

    def __init__(self) -> None:
        self._answers = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)
        self._cpu = CPUClock()

    def ready(self) -> None:
        self._send(ready=seconds_since_start())

    def wait(self, before: Callable[[], object] = bool) -> bool:
        """Wait for the next turn; False if there is none. `before` is called first and is not measured."""
        if sys.stdin.readline().strip() != "round":
            self._peak = peak_memory()
            return False
        before()
        self._cpu.start()
        self._start = time.perf_counter()
        return True

    def done(self) -> None:
        """Report that the round is done."""
        seconds = time.perf_counter() - self._start
        self._send(seconds=seconds, cpu_seconds=self._cpu.stop())

    def stop(self, **result: object) -> None:
        """Report the evidence of the work of all rounds, such as the loss of the final model on `workloads.probe`."""
        self._send(**result, peak_bytes=self._peak)

    def _send(self, **answer: object) -> None:
        print(json.dumps(answer), file=self._answers)
