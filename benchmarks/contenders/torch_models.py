"""The networks of the workloads in PyTorch, for the contenders that use it."""

from functools import cache

import torch
from torch import Tensor, nn

from workloads import Workload, initial, probe, samples


def network(workload: Workload) -> nn.Module:
    """The workload's network with its initial weights."""
    module = (
        nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))
        if workload.model == "mlp"
        else nn.Sequential(
            nn.Conv2d(1, 32, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(3136, 2048),
            nn.ReLU(),
            nn.Linear(2048, 62),
        )
    )
    with torch.no_grad():
        for parameter, value in zip(module.parameters(), initial(workload), strict=True):
            parameter.copy_(torch.from_numpy(value))
    return module


def probe_loss(workload: Workload, module: nn.Module) -> float:
    """The loss that compares the final models of the contenders."""
    x, y = map(torch.from_numpy, probe(workload))
    with torch.no_grad():
        return float(nn.functional.cross_entropy(module(x), y))


@cache
def reused_network(workload: Workload) -> nn.Module:
    """One network per process, for clients that share worker processes."""
    return network(workload)


@cache
def client_tensors(workload: Workload, k: int) -> tuple[Tensor, Tensor]:
    """The data of client k, created on first use."""
    x, y = samples(workload, k)
    return torch.from_numpy(x), torch.from_numpy(y)
