"""What a simulated round costs over a bare PyTorch loop that takes the same steps.

MLP 784-64-10, 10 clients a round, 2 epochs of 50 samples, batch 16. Both do the same SGD on the same batches, and
average; neither evaluates or writes. Runs are interleaved, and the ratio of the medians is what counts: absolute
times depend on how busy the machine is.
"""

import argparse
import copy
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from filfl import FederatedData
from filfl.aggregation.mean import Mean
from filfl.algorithms.fedavg import FedAvg
from filfl.algorithms.local_sgd import batches
from filfl.availability.always import Always
from filfl.clients import Job
from filfl.clock import Stopwatch
from filfl.evaluation import cross_entropy
from filfl.rng import stream
from filfl.round import filfl_round
from filfl.selection.random import Random
from filfl.server import FilFL, State
from filfl.simulation.serial import SerialClients
from filfl.simulation.setup import one_thread
from filfl.weights import FlatModel

CLIENTS, SAMPLES, K, EPOCHS, BATCH, LR = 100, 50, 10, 2, 16, 0.1
CPU = torch.device("cpu")


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))


def problem() -> FederatedData:
    rng = np.random.default_rng(0)
    n = CLIENTS * SAMPLES
    x = rng.random((n, 784), dtype=np.float32)
    nothing = (x[:1], [0])
    owners = np.arange(n) % CLIENTS
    return FederatedData.from_arrays(
        x, rng.integers(10, size=n), owners, test=nothing, filtering=nothing, validation=0.0
    )


def ours(data: FederatedData) -> Callable[[int], torch.Tensor]:
    """A round of filfl, without a filter."""
    net = FlatModel(network(), CPU)
    fl = FilFL(
        seed=0,
        num_clients=CLIENTS,
        clients=SerialClients(data, net, cross_entropy),
        layout=net.layout,
        availability=Always(),
        filter=None,
        reward=lambda trained, w_t, judged: NotImplemented,
        judge=None,
        when="algorithm-1",
        h=5,
        n=None,
        selection=Random(),
        K=K,
        job=lambda t: Job(0, t, FedAvg(), EPOCHS, None, BATCH, LR),
        aggregation=Mean(),
    )
    start = State(net.weights())
    return lambda t: filfl_round(t, start, fl, Stopwatch())[0].w.vector


def bare(data: FederatedData) -> Callable[[int], torch.Tensor]:
    """The loop that everybody writes first: a copy of the model and an optimiser a client, then the mean."""
    w_t = network().state_dict()
    module = network()
    xs = [torch.from_numpy(data.x[data.offsets[k] : data.offsets[k + 1]]) for k in range(CLIENTS)]
    ys = [torch.from_numpy(data.y[data.offsets[k] : data.offsets[k + 1]]) for k in range(CLIENTS)]

    def round(t: int) -> torch.Tensor:
        states = []
        for k in sorted(stream(0, t, "selection").choice(np.arange(CLIENTS), size=K, replace=False)):
            module.load_state_dict(w_t)
            optimiser = torch.optim.SGD(module.parameters(), lr=LR)
            for index in batches(SAMPLES, BATCH, EPOCHS, None, stream(0, t, "batches", int(k))):
                optimiser.zero_grad()
                functional.cross_entropy(module(xs[k][index]), ys[k][index]).backward()
                optimiser.step()
            states.append(copy.deepcopy(module.state_dict()))
        mean = {name: torch.stack([state[name] for state in states]).mean(dim=0) for name in w_t}
        return torch.cat([value.flatten() for value in mean.values()])

    return round


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=60)
    rounds = parser.parse_args().rounds
    data = problem()
    contenders = {"bare PyTorch loop": bare(data), "filfl, serial": ours(data)}
    with one_thread():
        for t in (1, 2, 3):  # warm up, and see that both do the same work
            results = [contender(t) for contender in contenders.values()]
            assert torch.allclose(*results, atol=1e-5), "the contenders do not take the same steps"
        seconds: dict[str, list[float]] = {name: [] for name in contenders}
        for t in range(4, rounds + 4):
            for name, contender in contenders.items():
                start = time.perf_counter()
                contender(t)
                seconds[name].append(time.perf_counter() - start)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    baseline = medians["bare PyTorch loop"]
    print(f"{rounds} rounds of {K} clients, median seconds a round, one thread:")
    for name, median in medians.items():
        print(f"  {name:20s} {median:.4f}   x {median / baseline:.2f}")


if __name__ == "__main__":
    main()
