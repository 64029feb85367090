"""A soak: long runs with clients that come, go, lie and die, on every executor; memory, files and descriptors.

    python benchmarks/soak.py                                   # 2,000 rounds on each executor
    python benchmarks/soak.py --rounds 300 --modes serial processes

It prints what this process and its workers hold at intervals, and whether it is flat: whether the second half of a run
needs more than the first. The exit code is 1 where it is not.
"""

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

import filfl
from filfl.attacks import Attack
from filfl.availability.base import Ids

MODES = ("serial", "vectorized", "processes")
POINTS = 10
"""How many lines are printed per run."""
ALLOWED = {"memory": 0.05, "files": 0.0, "descriptors": 0.0, "processes": 0.0}
"""How much larger the largest of the last half may be than that of the half before, after the first fifth."""
OWN = ("Pss_Anon:", "Pss_Shmem:", "SwapPss:")
"""What the processes of a run need for themselves. The pages of files, such as libraries, are shared with whatever else
runs on the machine, so their share grows when another process ends."""
SLACK = {"memory": 20.0, "files": 2, "descriptors": 4, "processes": 1}
"""What is allowed in addition: MB of memory; files, descriptors and processes that come and go."""


@dataclass(frozen=True, kw_only=True)
class Liars(Attack):
    """A third of the clients send other weights in about every second round: oversized, opposite or not finite."""

    def bad(self, num_clients: int, seed: int) -> Ids:
        return np.arange(0, num_clients, 3)

    def sent(self, w: Tensor, w_t: Tensor) -> Tensor:
        kind = random.randrange(6)
        if kind == 0:
            return w * float("nan")
        if kind == 1:
            return w_t + 1e30 * (w - w_t)
        return w_t - (w - w_t) if kind == 2 else w


class Fails(nn.Module):
    """A network that sometimes raises while it trains, as if its client had gone."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))

    def forward(self, x: Tensor) -> Tensor:
        if self.training and random.random() < 0.003:
            raise ConnectionError("the client is gone")
        outputs: Tensor = self.layers(x)
        return outputs


class Plain(nn.Sequential):
    """The same network without failures: batched models cannot raise for one client."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))


@dataclass
class Watch:
    """Samples what the process holds after every round, and kills a worker now and then."""

    out: Path
    rounds: int
    kill_every: int
    samples: list[dict[str, float]] = field(default_factory=list)
    killed: int = 0
    start: float = field(default_factory=time.monotonic)

    def __call__(self, record: Mapping[str, Any], state: object) -> None:
        t = record["round"]
        if self.kill_every and t % self.kill_every == 0 and (workers := sorted(children(os.getpid()))):
            os.kill(workers[t // self.kill_every % len(workers)], signal.SIGKILL)
            self.killed += 1
        if t % max(1, self.rounds // 200) == 0:
            self.samples.append({"round": t, **held(self.out)})
        if t % max(1, self.rounds // POINTS) == 0:
            now = {"round": t, **held(self.out)}
            seconds = time.monotonic() - self.start
            print(
                f"  {t:6d}  {seconds:7.0f} s  {now['memory']:8.1f} MB  {now['files']:5.0f} files  "
                f"{now['descriptors']:5.0f} descriptors  {now['processes']:3.0f} processes",
                flush=True,
            )

    def growth(self) -> list[str]:
        """One sentence for each quantity that is not flat."""
        settled = [each for each in self.samples if each["round"] > self.rounds / 5]
        middle = len(settled) // 2
        found = []
        for key, share in ALLOWED.items():
            before, after = (max(each[key] for each in half) for half in (settled[:middle], settled[middle:]))
            if after > before * (1 + share) + SLACK[key]:
                found.append(f"{key} grew from {before:,.1f} to {after:,.1f}")
        return found


def children(pid: int) -> Iterator[int]:
    """The processes that this one started."""
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        yield from map(int, path.read_text().split())


def held(out: Path) -> dict[str, float]:
    """Memory in MB of this process and its workers, without the pages of files; files of the run; open descriptors."""
    pids = [os.getpid(), *children(os.getpid())]
    memory = descriptors = 0.0
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            memory += sum(int(line.split()[1]) for line in lines if line.startswith(OWN)) / 1e3
            descriptors += len(list(Path(f"/proc/{pid}/fd").iterdir()))
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # it has just ended
    files = sum(1 for path in out.rglob("*") if path.is_file())
    return {"memory": memory, "files": files, "descriptors": descriptors, "processes": len(pids)}


def soak(mode: str, rounds: int, transport: str) -> list[str]:
    """One run; returns what was not flat."""
    rng = np.random.default_rng(0)
    y = rng.integers(3, size=1200)
    x = rng.normal(size=(1200, 8)) + 2 * np.eye(3, 8)[y]
    data = filfl.FederatedData.from_arrays(x, y, np.arange(1200) % 24, filtering=(x[:100], y[:100]))
    config = filfl.Config.read(
        {
            "rounds": rounds,
            "seed": 1,
            "execution.mode": mode,
            "execution.workers": 2,
            "availability.name": "diurnal",
            "selection.k": 4,
            "filter.name": "prune",
            "filter.transport": transport,
            "filter.reward": "ensemble",
            "filter.period": 5,
            "evaluate.every": 10,
        }
    )
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        watch = Watch(out, rounds, kill_every=97 if mode == "processes" else 0)
        model = Plain if mode == "vectorized" else Fails
        print(f"{mode}, {transport}: {rounds} rounds", flush=True)
        said: set[str] = set()
        result = filfl.simulate(
            replace(config, attack=Liars()), data, model, out=out, callbacks=[watch], progress=False, say=said.add
        )
    growth = watch.growth()
    refused = sum(len(record["refused"]) for record in result.records)
    killed = f", {watch.killed} workers killed" if watch.killed else ""
    accuracy = result.summary["final_accuracy"]
    print(f"  {refused} replies refused or missing{killed}, final accuracy {accuracy:.3f}")
    print(f"  {'NOT FLAT: ' + '; '.join(growth) if growth else 'flat'}", flush=True)
    return growth


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--modes", nargs="*", choices=MODES, default=list(MODES))
    parser.add_argument("--transports", nargs="*", choices=("models", "logits"), default=["models"])
    given = parser.parse_args()
    if not Path("/proc/self/smaps_rollup").exists():
        sys.exit("memory and descriptors are read from /proc, which this system does not have")
    if given.rounds < 20:
        parser.error("--rounds must be at least 20")
    runs = [(mode, transport) for mode in given.modes for transport in given.transports]
    growth = [text for mode, transport in runs for text in soak(mode, given.rounds, transport)]
    sys.exit(1 if growth else 0)


if __name__ == "__main__":
    main()
