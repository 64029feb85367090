"""Networks that evaluate candidates in parallel."""

import threading
import time
from typing import Any

import pytest
import torch
from torch import nn

import filfl
from filfl.filtering import networks
from filfl.filtering.networks import Networks, how_many
from filfl.weights import FlatModel

CPU = torch.device("cpu")


def dense() -> FlatModel:
    return FlatModel(nn.Linear(5, 3), CPU)


@pytest.fixture
def networks_of_3() -> Any:
    made = Networks(dense(), dense, at_once=3)
    yield made
    made.close()


def test_results_are_in_order_and_errors_are_raised(networks_of_3: Networks) -> None:
    def slow(i: int) -> int:
        time.sleep(0.03 if i % 3 == 0 else 0)  # so that later items finish first
        return i * i

    assert networks_of_3.each(slow, range(20)) == [i * i for i in range(20)]
    assert networks_of_3.each(lambda i: i * i, []) == []
    with pytest.raises(ZeroDivisionError):
        networks_of_3.each(lambda i: 1 // i, [2, 1, 0])


def test_at_once_threads_run_each_with_its_own_network(networks_of_3: Networks) -> None:
    barrier = threading.Barrier(3, timeout=30)

    def work(_: int) -> int:
        with networks_of_3.network() as net:
            barrier.wait()  # returns only if three threads wait at the same time
            return id(net)

    assert len(set(networks_of_3.each(work, range(6)))) == 3


@pytest.mark.parametrize("filter", ["dgf", "rgf", "opt"])
def test_the_number_of_threads_does_not_change_a_run(
    small: dict[str, Any], filter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(networks, "MIN_WORK", 0)
    runs = [
        filfl.simulate({**small, "filter.name": filter, "execution.mode": "serial", "execution.workers": n}).records
        for n in (1, 2, 7)
    ]
    assert runs[0] == runs[1] == runs[2]


def test_the_number_of_threads_depends_on_work_and_memory() -> None:
    assert how_many(dense(), 10, workers=8) == 1, "too small for a thread"
    assert how_many(dense(), 10_000_000, workers=8) == 8
    large = FlatModel(nn.Linear(4096, 4096, bias=False), CPU)  # sums of 134 MB
    assert [how_many(large, 100, workers) for workers in (1, 2, 64)] == [1, 2, 4]
