"""Several copies of one network, so that the candidates of a filter can be evaluated in parallel."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any

import torch

from filfl.weights import FlatModel

MIN_WORK = 10_000_000
"""Parameters times samples of one evaluation. For less work, starting a thread takes longer than the evaluation."""
MAX_BYTES = 1 << 29
"""The memory for the float64 sums of the candidates that are evaluated in parallel."""


class Networks:
    """Networks that run in parallel. Each evaluation uses one thread, so that its result is always the same."""

    def __init__(self, net: FlatModel, build: Callable[[], FlatModel] | None = None, at_once: int = 1) -> None:
        """`build` makes a further network like `net`; it is needed where `at_once` is above 1."""
        self.layout, self.device = net.layout, net.device
        self._frozen = net.frozen
        self.at_once = at_once
        self._build = build
        self._made = 1
        self._free: SimpleQueue[FlatModel] = SimpleQueue()
        self._free.put(net)
        self._pool = ThreadPoolExecutor(max(1, at_once - 1), "V", initializer=torch.set_num_threads, initargs=(1,))

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    @contextmanager
    def network(self) -> Iterator[FlatModel]:
        """A network for exclusive use within the context."""
        net = self._free.get()
        try:
            yield net
        finally:
            self._free.put(net)

    def each(self, work: Callable[[Any], Any], items: Any) -> list[Any]:
        """`map`, in parallel, with the results in order."""
        several = list(items)
        if len(several) < 2 or self.at_once == 1:
            return list(map(work, several))
        while self._build and self._made < self.at_once:  # not in the threads: building draws from global generators
            made = self._build()
            made.use_frozen(self._frozen)
            self._free.put(made)
            self._made += 1
        results: dict[int, Any] = {}
        waiting = iter(list(enumerate(several)))  # a list's iterator gives each item to one thread only

        def work_through() -> None:
            for i, item in waiting:
                results[i] = work(item)

        others = [self._pool.submit(work_through) for _ in range(min(len(several), self.at_once) - 1)]
        work_through()  # this thread works too: for small evaluations, switching threads is the largest cost
        for other in others:
            other.result()
        return [results[i] for i in range(len(several))]


def how_many(net: FlatModel, samples: int, workers: int) -> int:
    """The number of candidates to evaluate in parallel. It does not change the decisions."""
    if net.device.type != "cpu" or net.num_parameters * samples < MIN_WORK:
        return 1
    return min(workers, max(2, MAX_BYTES // (8 * net.layout.num_floats)))
