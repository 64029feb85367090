"""Section 4 of the paper on a problem with a known optimum: the distance to it, and the filtering gap."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

import filfl
from filfl.config.experiment import Experiment
from filfl.data.ridge import LeastSquares, Ridge, least_squares

CONVERGENCE: dict[str, Any] = {
    "rounds": 40,
    "data.name": "ridge",
    "data.clients": 6,
    "data.features": 5,
    "data.samples": 80,
    "model.name": "linear",
    "filter.name": "none",
    "filter.period": 1,
    "selection.name": "random-with-replacement",
    "selection.k": 3,
    "training.steps": 1,
    "training.batch": 80,
    "training.schedule": "inverse",
    "training.beta": 0.6,
    "training.weight_decay": 0.1,
}


def metrics(changes: dict[str, Any], name: str) -> list[float]:
    return [record["metrics"][name] for record in filfl.simulate({**CONVERGENCE, **changes}).records]


def test_distance_and_excess_by_hand() -> None:
    problem = LeastSquares(np.array([1.0, -1.0]), np.array([[2.0, 0.0], [0.0, 4.0]]))
    assert problem.distance([1.0, -1.0]) == problem.excess([1.0, -1.0]) == 0
    assert problem.distance([3.0, 0.0]) == 5.0
    assert problem.excess([3.0, 0.0]) == (2 * 4 + 4 * 1) / 2
    assert problem.distance(torch.tensor([3.0, 0.0])) == 5.0


def test_excess_is_objective_minus_its_minimum() -> None:
    data = Ridge(clients=4, features=3, samples=20).load(0)
    problem = least_squares(data, 0.3)

    def F(w: np.ndarray) -> float:
        spans = list(zip(data.offsets[:-1], data.train_ends, strict=True))
        return float(np.mean([np.mean((data.x[a:b] @ w - data.y[a:b]) ** 2) for a, b in spans]) + 0.15 * w @ w)

    for w in np.random.default_rng(0).normal(size=(5, 3)):
        assert problem.excess(w) == pytest.approx(F(w) - F(problem.optimum), rel=1e-5)


def test_distance_of_the_last_model_by_hand() -> None:
    result = filfl.simulate({**CONVERGENCE, "rounds": 3, "evaluate.every": 2})
    untested, *tested = (record["metrics"] for record in result.records)
    w = torch.cat([p.detach().flatten() for p in result.model.parameters()]).double().numpy()
    optimum = least_squares(Ridge(clients=6, features=5, samples=80).load(0), 0.1).optimum
    assert tested[-1]["distance"] == pytest.approx(np.sum((w - optimum) ** 2))
    assert untested == {} and len(tested) == 2


def test_distance_vanishes_without_noise_and_heterogeneity() -> None:
    same = {"data.heterogeneity": 0.0, "data.noise": 0.0, "training.weight_decay": 0.0, "rounds": 60}
    distances = metrics({**same, "training.schedule": "constant", "training.lr": 0.1}, "distance")
    assert all(later < before for before, later in pairwise(distances) if before > 1e-9)
    assert distances[-1] < 1e-4 * distances[0]


def test_distance_falls_as_one_over_t_with_step_beta_over_t() -> None:
    """Theorem 1 without a filter: from t = 10 to t = 160 by a factor of about 16, in the mean over seeds."""
    runs = np.array([metrics({"seed": seed, "rounds": 170}, "distance") for seed in range(6)]).mean(axis=0)
    early, late = runs[5:15].mean(), runs[150:170].mean()
    assert 6 < early / late < 60


def test_constant_step_ends_farther_from_the_optimum() -> None:
    runs = {
        schedule: metrics({"training.schedule": schedule, "training.lr": 0.3}, "distance")[-5:]
        for schedule in ("constant", "inverse")
    }
    assert np.mean(runs["inverse"]) < np.mean(runs["constant"])


def test_filtering_gap_of_keep_all_is_zero() -> None:
    assert metrics({"filter.name": "keep-all", "rounds": 3}, "filtering_gap") == [0.0] * 3


def test_filtering_gap_equals_gain_in_reward_with_federated_rewards() -> None:
    """With filter.data = federated and no weight decay F_V is F: R(S^f) - R(S_t) = F(v_t) - F(z_t)."""
    changes = {"filter.name": "opt", "filter.data": "federated", "training.weight_decay": 0.0, "training.lr": 0.05}
    changes |= {"training.schedule": "constant", "rounds": 12, "data.heterogeneity": 0.5}
    records = filfl.simulate({**CONVERGENCE, **changes}).records
    gains = [record["reward_filtered"] - record["reward_all"] for record in records]
    gaps = [record["metrics"]["filtering_gap"] for record in records]
    assert gaps == pytest.approx(gains, abs=2e-5) and max(gaps) > 1e-3
    assert all(gap >= -2e-5 for gap in gaps), "the best subset is not worse than all clients"


@pytest.mark.parametrize(
    "changes",
    [
        {"filter.name": "none"},
        {"availability.name": "redraw", "availability.n": 5},  # v_t is unknown: some clients did not train
        {"filter.cap": 5},
    ],
)
def test_filtering_gap_needs_the_weights_of_all_clients(changes: dict[str, Any]) -> None:
    records = filfl.simulate({**CONVERGENCE, "filter.name": "dgf", "rounds": 2, **changes}).records
    assert all(record["metrics"].keys() == {"distance"} for record in records)


def test_no_distance_without_a_known_optimum(blobs: filfl.FederatedData) -> None:
    brief = {**CONVERGENCE, "rounds": 1}
    own = filfl.simulate(brief, model=lambda: torch.nn.Sequential(torch.nn.Linear(5, 1), torch.nn.Flatten(0)))
    loss = filfl.simulate(brief, loss=lambda out, y: (out - y).abs().mean())
    assert own.records[0]["metrics"] == loss.records[0]["metrics"] == {}
    messages: list[str] = []
    few = {**brief, "data.clients": 3, "data.samples": 5, "data.features": 20, "training.weight_decay": 0.0}
    result = filfl.simulate({**few, "data.test": 0.2}, say=messages.append)
    assert result.records[0]["metrics"] == {}
    assert len(messages) == 1 and "distance to the optimum" in messages[0]


def test_convergence_study_from_toml(tmp_path: Any) -> None:
    (tmp_path / "convergence.toml").write_text(
        """
        rounds = 2
        data = { name = "ridge", clients = 6 }
        model.name = "linear"
        availability.name = "always"
        filter = { name = "opt", period = 1, optimum = true }
        selection = { name = "random-with-replacement", k = 4 }
        training = { steps = 2, schedule = "inverse", beta = 0.5, weight_decay = 0.1 }
        """
    )
    Experiment.load(tmp_path / "convergence.toml").config({})
    records = filfl.simulate(tmp_path / "convergence.toml").records
    assert all(record["metrics"].keys() == {"distance", "filtering_gap"} for record in records)
    assert all(record["reward_optimum"] == record["reward_filtered"] for record in records)
    assert all(len(record["selected"]) == 4 for record in records)
