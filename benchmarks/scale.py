"""The cost of a round when many more clients are registered than take part.

The workload has the shape of W3: MLP 784-64-10, 100 clients per round, 20 samples each, 1 epoch, batch 10, no filter;
N = 10^4 and 10^6. The samples are in memory-mapped files (15.7 GB for 10^6 clients; they are sparse, all zeros, and
take no disk space). Seconds are measured in one process, in rounds that alternate between the two. Memory is the peak
of a separate process for each, without the mapped pages of the data. Only the ratios matter.
"""

import argparse
import json
import multiprocessing
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from federation import federation
from filfl import FederatedData
from filfl.data.folder import METADATA
from filfl.models.mlp import MLP

FEW, MANY = 10**4, 10**6
K, SAMPLES, BATCH, LR = 100, 20, 10, 0.1
MOST_SECONDS, MOST_MEMORY = 1.2, 1.5
"""The target ratios of many clients to few."""
CONFIG = {"selection": {"k": K}, "training": {"epochs": 1, "batch": BATCH, "lr": LR}}


def problem(num_clients: int, folder: Path) -> FederatedData:
    """Data as written by `FederatedData.save`, except for its samples, which are the zeros of a sparse file."""
    sample = np.zeros((1, 784), dtype=np.uint8)
    small = FederatedData.from_arrays(sample, [9], [0], test=(sample, [0]), filtering=(sample, [0]), validation=0.0)
    small.save(folder)
    offsets = np.arange(num_clients + 1) * SAMPLES
    facts = json.loads((folder / METADATA).read_text())
    for name, shape in {"x": (num_clients * SAMPLES, 784), "y": (num_clients * SAMPLES,)}.items():
        np.lib.format.open_memmap(folder / f"{name}.npy", "w+", getattr(small, name).dtype, shape).flush()
    np.save(folder / "offsets.npy", offsets)
    np.save(folder / "train_ends.npy", offsets[1:])
    np.save(folder / "names.npy", np.arange(num_clients))
    np.save(folder / "noisy.npy", np.zeros(num_clients, dtype=bool))
    for name, noted in facts["arrays"].items():
        status = (folder / f"{name}.npy").stat()
        noted |= {"size": status.st_size, "changed": status.st_mtime_ns}
    (folder / METADATA).write_text(json.dumps(facts))
    return FederatedData.open(folder)


@contextmanager
def registered(num_clients: int, folder: Path) -> Iterator[Callable[[], float]]:
    """A function that runs the next round and returns its seconds, with the executor of a run of this shape."""
    data = problem(num_clients, folder / str(num_clients))
    make = partial(MLP().build, data.sample_shape, data.classes)
    with federation(CONFIG, data, make) as simulation:

        def round() -> float:
            start = time.perf_counter()
            record = simulation.round()
            seconds = time.perf_counter() - start
            assert len(record.selected) == K and not record.refused, "not every client trained"
            return seconds

        yield round


def seconds_per_round(rounds: int) -> dict[int, float]:
    """The median seconds per round, by the number of clients. The rounds alternate."""
    seconds: dict[int, list[float]] = {FEW: [], MANY: []}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        runs = {n: stack.enter_context(registered(n, folder)) for n in seconds}
        for t in range(rounds + 3):
            for n, run in runs.items():
                took = run()
                if t >= 3:  # the first rounds are for warm-up
                    seconds[n].append(took)
    return {n: statistics.median(values) for n, values in seconds.items()}


def peak_megabytes(num_clients: int, rounds: int) -> float:
    """The peak memory of a run in this process, without its data."""
    with tempfile.TemporaryDirectory() as folder, registered(num_clients, Path(folder)) as run:
        for _ in range(rounds):
            run()
        unit = 1024**2 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit - _mapped_megabytes(folder)


def _mapped_megabytes(folder: str) -> float:
    """Megabytes of the files in this folder that are in the memory of this process (0 where there is no /proc)."""
    smaps, kilobytes, ours = Path("/proc/self/smaps"), 0, False
    for line in smaps.read_text().splitlines() if smaps.exists() else []:
        first, *rest = line.split()
        if not first.endswith(":"):  # the first line of a mapping: addresses, ..., file
            ours = bool(rest) and rest[-1].startswith(folder)
        elif first == "Rss:" and ours:
            kilobytes += int(rest[0])
    return kilobytes / 1024


def measure(rounds: int = 30) -> dict[str, Any]:
    """Seconds and megabytes of few and of many clients, and their ratios."""
    memory = {}
    for n in (FEW, MANY):
        with multiprocessing.get_context("spawn").Pool(1) as alone:
            memory[n] = alone.apply(peak_megabytes, (n, rounds))
    seconds = seconds_per_round(rounds)  # last, because a new process inherits the peak of its parent
    return {
        "clients": [FEW, MANY],
        "seconds": [seconds[FEW], seconds[MANY]],
        "megabytes": [memory[FEW], memory[MANY]],
        "seconds_ratio": seconds[MANY] / seconds[FEW],
        "megabytes_ratio": memory[MANY] / memory[FEW],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    given = parser.parse_args()
    found = measure(given.rounds)
    print(f"{K} clients per round, median of {given.rounds} rounds, one thread:")
    print("  registered   seconds per round   peak MB without data")
    for n, seconds, megabytes in zip(found["clients"], found["seconds"], found["megabytes"], strict=True):
        print(f"  {n:10,d}   {seconds:17.4f}   {megabytes:20.0f}")
    print(f"  {'ratio':>10s}   {found['seconds_ratio']:17.2f}   {found['megabytes_ratio']:20.2f}")
    print(f"  {'target':>10s}   {MOST_SECONDS:17.2f}   {MOST_MEMORY:20.2f}")
    if given.json:
        given.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
