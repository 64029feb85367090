"""Synthetic data follows its distribution, and the computed optimum is the optimum."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import filfl
from filfl.data.ridge import Ridge, least_squares
from filfl.data.synthetic import Synthetic
from filfl.errors import DataError


@pytest.mark.parametrize("dataset", [Synthetic(clients=4), Ridge(clients=4)])
def test_the_data_depends_on_the_seed_and_not_on_the_number_of_clients(dataset: Synthetic | Ridge) -> None:
    data = dataset.load(0)
    assert data.fingerprint() == dataset.load(0).fingerprint() != dataset.load(1).fingerprint()
    more = replace(dataset, clients=5).load(0)
    assert np.array_equal(more.x[: len(data.x)], data.x), "the data of a client does not depend on the other clients"


@pytest.mark.parametrize("iid", [False, True])
def test_labels_are_the_outputs_of_the_clients_model(iid: bool) -> None:
    dataset = Synthetic(clients=5, iid=iid, most=200)
    data = dataset.load(3)
    held = 0
    for k in range(5):
        W, b = dataset.model(3, k)
        assert W.shape == (60, 10) and b.shape == (10,)
        mine, tested = slice(data.offsets[k], data.offsets[k + 1]), data.test_clients == k
        for x, y in ((data.x[mine], data.y[mine]), (data.test_x[tested], data.test_y[tested])):
            assert np.array_equal(y, np.argmax(x @ W + b, axis=1))
            held += len(y)
    assert held == len(data.y) + len(data.test_y) and data.classes == 10


def test_the_number_of_classes_is_the_option() -> None:
    data = Synthetic(clients=1, classes=500).load(0)
    assert data.classes == 500 > data.y.max() + 1


def test_alpha_is_the_deviation_between_models() -> None:
    def means(alpha: float) -> np.ndarray:
        dataset = Synthetic(alpha=alpha, features=60)
        return np.array([np.mean(np.concatenate([W.ravel(), b])) for W, b in (dataset.model(0, k) for k in range(200))])

    # The mean of 610 draws around u_k has the standard deviation 1/sqrt(610) = 0.04.
    assert abs(means(0.0).std() - 610**-0.5) < 0.008 and abs(means(0.0).mean()) < 0.01
    assert abs(means(1.0).std() - 1.0) < 0.15 and abs(means(3.0).std() - 3.0) < 0.45
    W, b = Synthetic(alpha=100.0).model(0, 1)
    assert abs(W.mean() - b.mean()) < 1.5 < abs(b.mean()), "W_k and b_k have the same u_k"


def client_means(data: filfl.FederatedData) -> np.ndarray:
    return np.array([data.x[a:b].mean(axis=0) for a, b in zip(data.offsets[:-1], data.offsets[1:], strict=True)])


def test_beta_is_the_deviation_between_inputs() -> None:
    options: dict[str, Any] = {"clients": 60, "features": 50, "test": 0.2}
    spread = {
        beta: client_means(Synthetic(beta=beta, **options).load(0)).mean(axis=1).std() for beta in (0.0, 1.0, 5.0)
    }
    # The mean of 50 draws around B_k has the standard deviation 1/sqrt(50) = 0.14.
    assert spread[0.0] == pytest.approx(0.14, abs=0.04)
    assert spread[1.0] == pytest.approx(1.0, abs=0.3) and spread[5.0] == pytest.approx(5.0, abs=1.5)


def test_coordinate_j_has_the_variance_j_to_the_minus_1_2() -> None:
    # Inputs of the iid variant have mean 0, so those of all clients can be pooled.
    x = Synthetic(iid=True, features=20).load(0).x
    assert len(x) > 2000
    assert np.allclose(x.var(axis=0), np.arange(1, 21) ** -1.2, rtol=5 * np.sqrt(2 / len(x)))
    assert np.abs(np.corrcoef(x.T) - np.eye(20)).max() < 5 / np.sqrt(len(x)), "Sigma is diagonal"


def test_iid_is_one_distribution_for_all_clients() -> None:
    dataset = Synthetic(iid=True, clients=20, alpha=9.0, beta=9.0)
    assert all(np.array_equal(dataset.model(0, 0)[i], dataset.model(0, 7)[i]) for i in (0, 1))
    assert np.abs(client_means(dataset.load(0))).max() < 1.0
    assert dataset.load(0).fingerprint() == replace(dataset, alpha=0.0, beta=0.0).load(0).fingerprint()
    assert not np.array_equal(Synthetic().model(0, 0)[0], Synthetic().model(0, 7)[0])


def test_sizes_are_lognormal_plus_fifty_and_capped() -> None:
    def sizes(most: int) -> np.ndarray:
        data = Synthetic(clients=200, features=2, most=most, filtering=0.0).load(0)
        return np.diff(data.offsets) + np.bincount(data.test_clients, minlength=200)

    free = sizes(10**4)
    assert free.min() >= 50 and np.median(free) == pytest.approx(50 + np.exp(4), rel=0.3)
    assert np.log(np.maximum(free - 50, 1)).std() == pytest.approx(2.0, abs=0.5)
    assert np.array_equal(sizes(120), np.minimum(free, 120)) and set(sizes(40)) == {40}


def objective(data: filfl.FederatedData, w: torch.Tensor, weight_decay: float) -> torch.Tensor:
    """1/N sum_k F_k(w), computed by torch."""
    losses = []
    for start, end in zip(data.offsets[:-1], data.train_ends, strict=True):
        x, y = (torch.from_numpy(values[start:end]).double() for values in (data.x, data.y))
        losses.append(torch.nn.functional.mse_loss(x @ w, y) + weight_decay / 2 * w.square().sum())
    return torch.stack(losses).mean()


@pytest.mark.parametrize("weight_decay", [0.0, 0.1, 3.0])
def test_the_gradient_is_zero_at_the_optimum_and_descent_converges_to_it(weight_decay: float) -> None:
    data = Ridge(clients=6, heterogeneity=2.0, noise=0.5).load(1)
    w_star = torch.tensor(least_squares(data, weight_decay).optimum, requires_grad=True)
    (gradient,) = torch.autograd.grad(objective(data, w_star, weight_decay), w_star)
    assert gradient.abs().max() < 1e-10
    w = torch.zeros(10, dtype=torch.float64, requires_grad=True)
    for _ in range(400):
        (gradient,) = torch.autograd.grad(objective(data, w, weight_decay), w)
        w = (w - 0.1 * gradient).detach().requires_grad_()
    assert torch.allclose(w, w_star, atol=1e-6)


def test_the_optimum_weights_clients_equally() -> None:
    # The optimum of client 0 (three samples) is w = 0, that of client 1 (one sample) is w = 4; their mean is 2.
    data = filfl.FederatedData.from_arrays(
        np.ones((4, 1)), np.array([0.0, 0.0, 0.0, 4.0]), [0, 0, 0, 1], test=([[1.0]], [0.0]), filtering=0, validation=0
    )
    assert least_squares(data, 0.0).optimum == pytest.approx([2.0])
    assert least_squares(data, 2.0).optimum == pytest.approx([1.0]), "2 (w - 2) + 2 w = 0"


def test_without_noise_and_heterogeneity_the_optimum_fits_everything() -> None:
    data = Ridge(heterogeneity=0.0, noise=0.0).load(0)
    assert np.allclose(data.test_x @ least_squares(data, 0.0).optimum, data.test_y, atol=1e-5)
    apart = Ridge(heterogeneity=1.0, noise=0.0).load(0)
    assert not np.allclose(apart.test_x @ least_squares(apart, 0.0).optimum, apart.test_y, atol=0.1)


def test_federated_rounds_converge_to_the_optimum() -> None:
    data = Ridge(clients=5, heterogeneity=1.0).load(0)
    result = filfl.simulate(
        {
            "data.name": "ridge",
            "data.clients": 5,
            "model.name": "linear",
            "rounds": 120,
            "selection.k": 5,
            "filter.name": "none",
            "training.steps": 1,
            "training.batch": 50,
            "training.lr": 0.1,
            "training.weight_decay": 0.2,
        },
        loss=torch.nn.functional.mse_loss,
    )
    (weight,) = result.model.parameters()
    assert np.allclose(weight.detach().numpy()[0], least_squares(data, 0.2).optimum, atol=1e-4), (
        "this is gradient descent"
    )


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (
            Ridge(clients=1, samples=10, features=20).load(0),
            "do not span the 20 features; set training.weight_decay",
        ),
        (Synthetic(clients=2).load(0), "the optimum needs rows of numbers"),
    ],
)
def test_data_without_a_single_optimum_is_refused(data: filfl.FederatedData, reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        least_squares(data, 0.0)


def test_random_labels_need_classes() -> None:
    assert Ridge().load(0).classes == 0 and Ridge().load(0).y.dtype == np.float32
    with pytest.raises(DataError, match=r"data\.noisy needs class labels"):
        Ridge(noisy=0.5).load(0)
