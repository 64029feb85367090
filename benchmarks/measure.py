"""CPU time and memory of a process with all its descendants.

It uses only the standard library, so that it runs in every environment.
"""

import os
import resource
import time
from pathlib import Path

PROC = Path("/proc")


class CPUClock:
    """CPU seconds of this process and its descendants between `start` and `stop`, without those of this class."""

    def start(self) -> None:
        self._others = _others()
        self._own = time.process_time()

    def stop(self) -> float:
        own = time.process_time() - self._own
        return own + _others() - self._others


def peak_memory() -> int:
    """Peak resident bytes of this process and its descendants.

    It is the sum of the peaks of the running processes. Pages of files and of shared memory count once, for the process
    that has most of them. Descendants that have ended are not counted.
    """
    alive = [_status(pid) for pid in (os.getpid(), *descendants())]
    shared = [status.get("RssFile", 0) + status.get("RssShmem", 0) for status in alive]
    own = sum(max(0, status.get("VmHWM", 0) - s) for status, s in zip(alive, shared, strict=True))
    return 1024 * (own + max(shared))


def resident_memory() -> int:
    """Resident bytes of the descendants of this process now. Shared pages count once, as in `peak_memory`."""
    alive = [_status(pid) for pid in descendants()]
    shared = [status.get("RssFile", 0) + status.get("RssShmem", 0) for status in alive]
    return 1024 * (sum(status.get("RssAnon", 0) for status in alive) + max(shared, default=0))


def seconds_since_start() -> float:
    """Seconds since this process was started."""
    ticks = int((PROC / "self/stat").read_text().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


def descendants() -> list[int]:
    """The processes that this one has started, directly or indirectly."""
    children: dict[int, list[int]] = {}
    for entry in PROC.iterdir():
        if entry.name.isdecimal():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, IndexError):
                continue  # the process has ended in the meantime
            children.setdefault(parent, []).append(int(entry.name))
    found, waiting = [], [os.getpid()]
    while waiting:
        mine = children.get(waiting.pop(), [])
        found += mine
        waiting += mine
    return found


def _others() -> float:
    """CPU seconds of the descendants, running or ended."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return ended.ru_utime + ended.ru_stime + sum(map(_cpu_of, descendants()))


def _cpu_of(pid: int) -> float:
    try:
        return time.clock_gettime((~pid << 3) | 2)  # clock_getcpuclockid(3), for all threads of the process
    except OSError:
        return 0.0


def _status(pid: int) -> dict[str, int]:
    """The lines of /proc/pid/status that are in kilobytes."""
    try:
        lines = (PROC / str(pid) / "status").read_text().splitlines()
    except OSError:
        return {}
    return {key: int(value.split()[0]) for key, _, value in (line.partition(":") for line in lines) if "kB" in value}
