"""Local training equals torch.optim.SGD, and FedProx with mu = 0 equals FedAvg."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from filfl.algorithms.fedavg import FedAvg
from filfl.algorithms.fedprox import FedProx
from filfl.algorithms.local_sgd import batches, local_sgd
from filfl.config.sections import Training
from filfl.evaluation import Samples, cross_entropy
from filfl.weights import FlatModel

CPU = torch.device("cpu")


def problem() -> tuple[FlatModel, Samples]:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    x, y = torch.randn(21, 4), torch.randint(3, (21,))
    return FlatModel(module, CPU), Samples(x, y, torch.tensor(1.0), torch.tensor(0.0))


def train(algorithm, momentum=0.0, weight_decay=0.0) -> tuple[torch.Tensor, float]:
    model, samples = problem()
    w_t = model.weights()
    steps = batches(21, 8, 2, None, np.random.default_rng(5))
    loss = local_sgd(model, w_t, samples, cross_entropy, algorithm, steps, 0.1, momentum, weight_decay)
    return model.vector.clone(), loss


@pytest.mark.parametrize(("momentum", "weight_decay"), [(0.0, 0.0), (0.9, 0.0), (0.0, 0.01), (0.9, 0.01)])
def test_local_sgd_equals_torch_sgd(momentum: float, weight_decay: float) -> None:
    model, samples = problem()
    plain = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    plain.load_state_dict(model.layout.unflatten(model.weights()))
    optimiser = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=momentum, weight_decay=weight_decay)
    losses, sizes = [], []
    for index in batches(21, 8, 2, None, np.random.default_rng(5)):
        optimiser.zero_grad()
        loss = cross_entropy(plain(samples.x[index]), samples.y[index])
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
        sizes.append(len(index))
    vector, train_loss = train(FedAvg(), momentum, weight_decay)
    expected = torch.cat([p.detach().flatten() for p in plain.parameters()])
    assert torch.allclose(vector, expected, atol=1e-6)
    assert train_loss == pytest.approx(np.average(losses, weights=sizes), abs=1e-6)


def test_fedprox_with_mu_0_is_fedavg_bit_for_bit() -> None:
    assert torch.equal(train(FedProx(mu=0.0))[0], train(FedAvg())[0])


def test_fedprox_is_sgd_on_the_loss_plus_the_proximal_term() -> None:
    model, samples = problem()
    w_t = model.weights()
    plain = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    plain.load_state_dict(model.layout.unflatten(w_t))
    optimiser = torch.optim.SGD(plain.parameters(), lr=0.1)
    for index in batches(21, 8, 2, None, np.random.default_rng(5)):
        w = torch.cat([p.flatten() for p in plain.parameters()])
        loss = cross_entropy(plain(samples.x[index]), samples.y[index]) + 0.7 / 2 * (w - w_t.vector).square().sum()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    expected = torch.cat([p.detach().flatten() for p in plain.parameters()])
    assert torch.allclose(train(FedProx(mu=0.7))[0], expected, atol=1e-6)
    assert not torch.allclose(train(FedProx(mu=0.7))[0], train(FedAvg())[0], atol=1e-3)


@given(st.integers(1, 40), st.integers(1, 50), st.integers(1, 4))
def test_an_epoch_sees_every_sample_once(num_samples: int, batch: int, epochs: int) -> None:
    steps = list(batches(num_samples, batch, epochs, None, np.random.default_rng(0)))
    seen = np.bincount(np.concatenate(steps), minlength=num_samples)
    assert (seen == epochs).all()
    assert max(map(len, steps)) <= batch


@given(st.integers(1, 40), st.integers(1, 50), st.integers(1, 30))
def test_the_number_of_steps_is_exact(num_samples: int, batch: int, steps: int) -> None:
    made = list(batches(num_samples, batch, None, steps, np.random.default_rng(0)))
    assert len(made) == steps
    epoch = -(-num_samples // batch)
    for start in range(0, steps - epoch + 1, epoch):
        assert sorted(np.concatenate(made[start : start + epoch])) == list(range(num_samples))


@pytest.mark.parametrize(
    ("training", "lrs"),
    [
        (Training(lr=0.5), [0.5, 0.5, 0.5, 0.5]),
        (Training(lr=0.5, schedule="step", factor=0.5, every=2), [0.5, 0.25, 0.25, 0.125]),
        (Training(lr=0.5, schedule="milestones", factor=0.1, milestones=(2, 4)), [0.5, 0.05, 0.05, 0.005]),
        (Training(schedule="inverse", beta=2.0), [2.0, 1.0, 2 / 3, 0.5]),
    ],
)
def test_step_sizes(training: Training, lrs: list[float]) -> None:
    assert [training.lr_at(t) for t in (1, 2, 3, 4)] == pytest.approx(lrs)
