"""Section 4 of the paper on a problem with a known optimum: the distance to it, and the filtering gap."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

import filfl
from filfl.config.experiment import Experiment
from filfl.config.sections import Training
from filfl.data.ridge import LeastSquares, Ridge, least_squares
from filfl.simulation.build import beta_too_small

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
TERMS = {"filtering_gap", "filter_shift", "filter_bias"}


def metrics(changes: dict[str, Any], name: str) -> list[float]:
    return [record["metrics"][name] for record in filfl.simulate({**CONVERGENCE, **changes}).records]


def test_distance_and_excess_by_hand() -> None:
    problem = LeastSquares(np.array([[[2.0, 0.0], [0.0, 4.0]]]), np.array([[2.0, -4.0]]), np.zeros(1))
    assert problem.distance([1.0, -1.0]) == problem.excess([1.0, -1.0]) == 0
    assert problem.distance([3.0, 0.0]) == 5.0
    assert problem.excess([3.0, 0.0]) == (2 * 4 + 4 * 1) / 2
    assert problem.distance(torch.tensor([3.0, 0.0])) == 5.0


def test_constants_and_terms_of_section_4_by_hand() -> None:
    """F_1 = (w - 1)^2 / 2 and F_2 = 3/2 (w + 1)^2: F = w^2 + w + 1 has its minimum 3/4 at -1/2, F_1* = F_2* = 0."""
    problem = LeastSquares(np.array([[[1.0]], [[3.0]]]), np.array([[1.0], [-3.0]]), np.array([0.5, 1.5]))
    assert problem.optimum == pytest.approx([-0.5])
    assert problem.terms() == pytest.approx({"mu": 1.0, "L": 3.0, "gamma": 0.75})
    # v = 0, z = 1 and S^f = {1}: F(0) = 1, F(1) = 3, and the optimum of client 1 alone is 1.
    terms = problem.filter_terms([0.0], [1.0], [0])
    assert terms == pytest.approx({"filtering_gap": -2.0, "filter_shift": 1.0, "filter_bias": 1.5})
    assert problem.filter_terms([0.0], [0.0], [0, 1])["filter_bias"] == 0


def test_gamma_is_zero_for_equal_clients_and_grows_with_heterogeneity() -> None:
    gammas = [
        least_squares(Ridge(clients=5, features=3, samples=40, noise=0.0, heterogeneity=h).load(0), 0.0).gamma
        for h in (0.0, 0.5, 1.0)
    ]
    assert gammas[0] == pytest.approx(0, abs=1e-6) and gammas[0] < gammas[1] < gammas[2]


def test_summary_has_the_constants_of_section_4() -> None:
    problem = least_squares(Ridge(clients=6, features=5, samples=80).load(0), 0.1)
    summary = filfl.simulate({**CONVERGENCE, "rounds": 1}).summary
    assert {key: summary[key] for key in ("mu", "L", "gamma")} == problem.terms()


def test_a_beta_below_1_over_mu_is_reported() -> None:
    """mu E beta counts, since t counts rounds and not steps."""
    mu = least_squares(Ridge(clients=6, features=5, samples=80).load(0), 0.1).mu
    for steps, beta, warned in ((1, 0.9 / mu, True), (1, 1.1 / mu, False), (2, 0.6 / mu, False), (2, 0.4 / mu, True)):
        messages: list[str] = []
        changes = {"rounds": 1, "training.steps": steps, "training.beta": beta}
        filfl.simulate({**CONVERGENCE, **changes}, say=messages.append)
        assert any("training.beta is below 1 / (mu E)" in message for message in messages) == warned
    assert beta_too_small(Training(schedule="constant"), 10, 0.01) is None
    assert beta_too_small(Training(schedule="inverse", beta=1.0, epochs=2, batch=4), 9, 0.2) is None, "6 steps"
    assert beta_too_small(Training(schedule="inverse", beta=1.0, epochs=2, batch=9), 9, 0.2) is not None, "2 steps"


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
    assert all(record["metrics"].keys() == {"distance", *TERMS} for record in records)
    assert all(record["reward_optimum"] == record["reward_filtered"] for record in records)
    assert all(len(record["selected"]) == 4 for record in records)
