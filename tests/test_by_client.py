"""Metrics per client: the mean accuracy over clients, and over the worst tenth of them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import filfl
from filfl.data.digits import Mnist5k
from filfl.evaluation import accuracy, by_client


def test_values_worked_out_by_hand() -> None:
    # Accuracy of client 0: 1 of 2 samples, of client 4: 1, of client 7: 0. The last sample has no client.
    metrics = by_client(np.array([0, 4, 7, 0, 4, 4, -1]))
    targets = torch.zeros(7, dtype=torch.int64)
    outputs = torch.tensor([[1.0, 0], [1, 0], [0, 1], [0, 1], [1, 0], [1, 0], [1, 0]])
    assert metrics["client_accuracy"](outputs, targets) == pytest.approx((0.5 + 1 + 0) / 3)
    assert metrics["worst_tenth"](outputs, targets) == 0.0, "one of three clients"


def test_the_worst_tenth_is_rounded_down_to_at_least_one_client() -> None:
    # Client k classifies k of its 30 samples correctly.
    for clients, worst in {1: [0], 9: [0], 19: [0], 20: [0, 1], 30: [0, 1, 2]}.items():
        owners = np.repeat(np.arange(clients), 30)
        right = torch.arange(30).repeat(clients) < torch.from_numpy(owners)
        outputs = torch.stack([right, ~right], dim=1).float()
        metrics = by_client(owners)
        got = metrics["worst_tenth"](outputs, torch.zeros(len(owners), dtype=torch.int64))
        assert got == pytest.approx(np.mean(worst) / 30)


samples = st.lists(st.tuples(st.integers(-1, 12), st.booleans()), min_size=1, max_size=60)


@given(samples)
def test_the_worst_tenth_is_at_most_the_mean(made: list[tuple[int, bool]]) -> None:
    owners = np.array([owner for owner, _ in made])
    right = torch.tensor([ok for _, ok in made])
    outputs, targets = torch.stack([right, ~right], dim=1).float(), torch.zeros(len(made), dtype=torch.int64)
    metrics = by_client(owners)
    assert bool(metrics) == bool((owners >= 0).any())
    if metrics:
        mean, worst = (metrics[name](outputs, targets) for name in ("client_accuracy", "worst_tenth"))
        expected = [right[owners == k].double().mean() for k in np.unique(owners[owners >= 0])]
        assert mean == pytest.approx(np.mean(expected))
        assert min(expected) - 1e-9 <= worst <= mean + 1e-9


def test_with_equal_numbers_of_samples_the_mean_is_the_accuracy() -> None:
    rng = np.random.default_rng(0)
    outputs, targets = torch.from_numpy(rng.normal(size=(60, 4))), torch.from_numpy(rng.integers(4, size=60))
    mean = by_client(np.arange(60) % 12)["client_accuracy"](outputs, targets)
    assert mean == pytest.approx(accuracy(outputs, targets))


def test_the_summary_has_the_final_accuracy_on_the_test_samples_of_each_client(
    blobs: filfl.FederatedData, tmp_path: Path
) -> None:
    result = filfl.simulate({"rounds": 2, "selection.k": 3}, data=blobs, out=tmp_path / "run", progress=False)
    tests = result.summary["client_tests"]
    assert tests["id"] == list(range(9)) and sum(tests["samples"]) == len(blobs.test_y)
    assert np.mean(tests["accuracy"]) == pytest.approx(result.records[-1]["metrics"]["client_accuracy"])
    assert np.average(tests["accuracy"], weights=tests["samples"]) == pytest.approx(result.records[-1]["test_accuracy"])
    assert filfl.load(tmp_path / "run").summary["client_tests"] == tests
    unknown = replace(blobs, test_clients=np.full(len(blobs.test_y), -1))
    assert "client_tests" not in filfl.simulate({"rounds": 1, "selection.k": 3}, data=unknown, progress=False).summary


def test_records_have_the_metrics_if_test_samples_have_clients(blobs: filfl.FederatedData, tmp_path: Path) -> None:
    config = {"rounds": 3, "selection.k": 2, "evaluate.every": 2}
    result = filfl.simulate(config, blobs)
    untested, *tested = (record["metrics"] for record in result.records)
    assert untested == {} and all(m.keys() == {"accuracy", "client_accuracy", "worst_tenth"} for m in tested)
    assert all(m["worst_tenth"] <= m["client_accuracy"] <= 1 for m in tested)
    with torch.no_grad():
        right = (result.model(torch.from_numpy(blobs.test_x)).argmax(1).numpy() == blobs.test_y).astype(float)
    each = sorted(right[blobs.test_clients == k].mean() for k in range(9))
    assert tested[-1]["client_accuracy"] == pytest.approx(np.mean(each)) and tested[-1]["worst_tenth"] == each[0]
    blobs.save(tmp_path / "blobs")
    mapped = filfl.simulate(config, filfl.FederatedData.open(tmp_path / "blobs"))
    assert mapped.records == result.records, "a saved folder keeps the clients of the test samples"


def test_a_pooled_test_set_has_no_metrics_per_client_and_own_metrics_are_added(blobs: filfl.FederatedData) -> None:
    assert (Mnist5k(clients=10).load(0).test_clients == -1).all() and by_client(np.full(3, -1)) == {}
    own = filfl.simulate({"rounds": 1, "selection.k": 2}, blobs, metrics={"own": accuracy})
    assert own.records[0]["metrics"].keys() == {"accuracy", "client_accuracy", "worst_tenth", "own"}
