"""Server optimisers: small numbers by hand, and whole runs. tests/flower compares them with Flower's strategies."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import filfl
from filfl.aggregation import Admitted, Memory, ServerSide
from filfl.aggregation.fedavgm import FedAvgM
from filfl.aggregation.fedopt import FedAdam, FedYogi
from filfl.aggregation.mean import Mean
from filfl.aggregation.server_optimizer import ServerOptimizer
from filfl.weights import Weights

NO_INTEGERS = torch.empty(0, dtype=torch.int64)


def weights(vector: Any) -> Weights:
    return Weights(torch.as_tensor(vector, dtype=torch.float64), NO_INTEGERS)


def two_rounds(optimizer: ServerOptimizer, *sent: list[list[float]]) -> list[list[float]]:
    """The models after rounds in which clients move the model by these updates, from 0."""
    memory: Memory = {}
    w, models = weights(torch.zeros(len(sent[0][0]))), []
    for t, rows in enumerate(sent, start=1):
        updates = [Admitted(weights(w.vector + torch.tensor(row, dtype=torch.float64)), 1, 0.0) for row in rows]
        memory, w = optimizer(t, memory, w, updates)
        models.append(w.vector.tolist())
    return models


def test_by_hand() -> None:
    # d = 2, then 1: v = 2, then 0.5 * 2 + 1 = 2. Steps of 0.5 v.
    assert two_rounds(FedAvgM(eta=0.5, momentum=0.5), [[1.0], [3.0]], [[1.0]]) == [[1.0], [2.0]]
    # d = 4, then 2: m = 2, then 2; v = 0 + 0.25 * 16 = 4, then 4 + 0.25 * 4 sign(4 - 4) = 4. Steps of m / (2 + 2).
    yogi = FedYogi(eta=1.0, beta_1=0.5, beta_2=0.75, tau=2.0)
    assert two_rounds(yogi, [[4.0]], [[2.0]]) == [[0.5], [1.0]]
    # The same with Adam: v = 4, and eta_1 = sqrt(1 - 0.75^2) / (1 - 0.5^2).
    adam = FedAdam(eta=1.0, beta_1=0.5, beta_2=0.75, tau=2.0)
    np.testing.assert_allclose(two_rounds(adam, [[4.0]])[0], [0.5 * np.sqrt(0.4375) / 0.75])


def test_what_the_updates_are_averaged_by() -> None:
    def averaged(of: Any) -> float:
        updates = [Admitted(weights([x]), n, 0.0) for x, n in ((1.0, 1), (2.0, 7), (6.0, 2))]
        optimizer = FedAvgM(momentum=0.0, of=of)
        return float(optimizer(1, {}, weights([0.0]), updates)[1].vector)

    assert [averaged(of) for of in ("mean", "by-examples", "median")] == [3.0, 2.7, 2.0]


def test_without_momentum_it_is_the_mean() -> None:
    rng = np.random.default_rng(0)
    updates = [Admitted(weights(rng.normal(size=9)), 1, 0.0) for _ in range(3)]
    w_t = weights(rng.normal(size=9))
    found, expected = FedAvgM(momentum=0.0)(1, {}, w_t, updates)[1], Mean()(1, {}, w_t, updates)[1]
    torch.testing.assert_close(found.vector, expected.vector)


@pytest.mark.parametrize("optimizer", [FedAvgM(eta=3.0), FedAdam(), FedYogi()])
def test_statistics_are_averaged(optimizer: ServerOptimizer) -> None:
    """A variance of BatchNorm must not become negative."""
    updates = [Admitted(weights([x, 0.2]), 1, 0.0) for x in (1.0, 3.0)]
    memory, w = optimizer.on(ServerSide(num_trained=1))(1, {}, weights([0.0, 1.0]), updates)
    assert float(w.vector[1]) == pytest.approx(0.2, abs=1e-15)
    assert all(len(value) == 1 for value in memory.values())
    assert float(w.vector[0]) != pytest.approx(2.0)


def test_the_updates_are_not_changed() -> None:
    """With one client, the mean must not be its own vector."""
    updates, w_t = [Admitted(weights([1.0, 2.0]), 1, 0.0)], weights([0.0, 0.0])
    for of in ("mean", "by-examples", "median"):
        FedAdam(of=of)(1, {}, w_t, updates)
        assert updates[0].weights.vector.tolist() == [1.0, 2.0] and w_t.vector.tolist() == [0.0, 0.0]


RUN: dict[str, Any] = {
    "rounds": 6,
    "data.clients": 8,
    "data.alpha": 5.0,
    "model.hidden": [16],
    "filter.name": "none",
    "selection.k": 4,
    "training.lr": 0.3,
}
RUNS: dict[str, dict[str, Any]] = {
    "fedavgm": {"aggregation.momentum": 0.5},
    "fedadam": {"aggregation.eta": 0.02},
    "fedyogi": {"aggregation.eta": 0.02, "aggregation.of": "median"},
}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_learns_and_can_be_resumed(name: str, tmp_path: Path) -> None:
    config = {**RUN, **RUNS[name], "aggregation.name": name}

    class Stop(Exception):
        pass

    def stop(record: Any, state: Any) -> None:
        if record["round"] == 3:
            raise Stop

    whole = filfl.simulate(config, out=tmp_path / "whole", progress=False)
    with pytest.raises(Stop):
        filfl.simulate(config, out=tmp_path / "resumed", callbacks=[stop], progress=False)
    filfl.simulate(config, out=tmp_path / "resumed", resume=True, progress=False)
    for file in ("rounds.jsonl", "model.safetensors"):
        assert (tmp_path / "whole" / file).read_bytes() == (tmp_path / "resumed" / file).read_bytes()
    first, last = whole.records[0]["test_loss"], whole.records[-1]["test_loss"]
    assert last < first - 0.2


def test_a_model_with_batchnorm_keeps_its_variances_positive(blobs: filfl.FederatedData) -> None:
    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))

    config = {"rounds": 3, "filter.name": "none", "selection.k": 3, "aggregation.name": "fedadam"}
    result = filfl.simulate({**config, "aggregation.eta": 1.0}, blobs, model, progress=False)
    assert (result.model[1].running_var > 0).all()
