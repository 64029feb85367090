"""The benchmark on Flower: its ratios, and one small arm in the real engine."""

import subprocess
import sys

import pytest

import flower
import measure


def test_rounds_are_compared_with_rounds_of_as_many_clients() -> None:
    arms = {
        "FedAvg, K clients": {"seconds": [1.0, 1.0, 9.0], "peak MB": 100},
        "FilFL without a filter, K clients": {"seconds": [1.5, 1.5, 1.0], "peak MB": 110},
        "FedAvg, all clients": {"seconds": [10.0, 20.0, 10.0], "peak MB": 200},
        "FilFL, prune": {"seconds": [15.0, 2.0, 2.0, 15.0], "peak MB": 500},
        "FilFL, prune, logits": {"seconds": [12.0, 1.0, 1.0, 12.0], "peak MB": 210},
    }
    assert flower.PERIOD == 3, "rounds 1 and 4 filter"
    assert flower.ratios_of(arms) == {
        "FilFL without a filter, K clients": {"ordinary round": 1.5, "peak memory": 1.1},
        "FilFL, prune": {"filter round": 1.5, "ordinary round": 2.0, "peak memory": 2.5},
        "FilFL, prune, logits": {"filter round": 1.2, "ordinary round": 1.0, "peak memory": 1.05},
    }


def test_resident_memory_is_that_of_the_descendants() -> None:
    code = (
        "import sys; block = bytearray(300 << 20); block[::4096] = b'1' * len(block[::4096]); print(); sys.stdin.read()"
    )
    before = measure.resident_memory()
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout and process.stdout.readline()
        grown = measure.resident_memory() - before
        process.communicate()
    assert 300 < grown / 2**20 < 400


@pytest.mark.federation
def test_an_arm_runs_in_the_engine() -> None:
    result = flower.measured_arm("logits", clients=8, k=2, rounds=2)
    assert len(result["seconds"]) == 2 and result["peak MB"] > 300
