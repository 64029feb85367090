"""What the server and the sites share: the config, the data, the network and local training, all in plain torch."""

from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from filfl import Config, FederatedData, stream


def load_config(settings: Mapping[str, Any]) -> Config:
    """The settings of [tool.flwr.app.config] as a filfl config: `filfl run` with it makes the same decisions."""
    return Config.from_table(
        {
            "name": "flower-parity",
            "seed": settings["seed"],
            "rounds": settings["rounds"],
            "data": {"name": "digits", "clients": settings["sites"], "noisy": settings["noisy"]},
            "model": {"name": "mlp", "hidden": [settings["hidden"]]},
            "filter": {
                "name": settings["filter"],
                "reward": settings["reward"],
                "transport": settings["transport"],
                "period": settings["h"],
                "size": 100,
            },
            "selection": {"name": settings["selection"], "k": settings["k"]},
            "training": {"epochs": 2, "batch": 10, "lr": 0.1},
            "aggregation": {"name": "by-examples"},  # as in Flower's FedAvg
        }
    )


class Task:
    """The digits of all sites and how a site trains on its own. With your own data, a site loads only its own."""

    def __init__(self, config: Config) -> None:
        torch.set_num_threads(1)  # so that sums do not depend on the number of cores
        self.config = config
        self.data: FederatedData = config.data.load(config.seed)

    def network(self) -> nn.Module:
        return self.config.model.build(self.data.sample_shape, self.data.classes)

    def initial_network(self) -> nn.Module:
        """The network with the initial weights of this seed."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(stream(self.config.seed, 0, "initial-weights").integers(2**63)))
            return self.network()

    def tensors(self, x: NDArray[Any], y: NDArray[Any]) -> tuple[Tensor, Tensor]:
        """Samples as tensors. Pixels are stored as bytes."""
        return torch.from_numpy(x) * float(self.data.scale) + float(self.data.shift), torch.from_numpy(y)

    def batches(self, site: int) -> tuple[list[tuple[Tensor, Tensor]], list[tuple[Tensor, Tensor]]]:
        """The training data and the validation data of a site, each as one batch."""
        start, middle, stop = self.data.offsets[site], self.data.train_ends[site], self.data.offsets[site + 1]
        train, validation = (
            self.tensors(self.data.x[a:b], self.data.y[a:b]) for a, b in ((start, middle), (middle, stop))
        )
        return [train], [validation]

    def train(self, site: int, state: Mapping[str, Tensor], t: int) -> tuple[dict[str, Tensor], int, float]:
        """Local SGD: the new weights, the number of examples and the mean training loss."""
        training = self.config.training
        [(x, y)], _ = self.batches(site)
        model = self.network()
        model.load_state_dict(state)
        optimizer = torch.optim.SGD(model.parameters(), lr=training.lr_at(t))
        rng = stream(self.config.seed, t, "batches", site)  # the order of the simulator in this round
        total = number = 0.0
        for _ in range(training.epochs or 1):
            for index in torch.from_numpy(rng.permutation(len(y))).split(training.batch):
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(x[index]), y[index])
                loss.backward()
                optimizer.step()
                total, number = total + len(index) * loss.item(), number + len(index)
        return model.state_dict(), len(y), total / number


@cache
def _open_task(settings: tuple[tuple[str, Any], ...]) -> Task:
    return Task(load_config(dict(settings)))


def task_of(run_config: Mapping[str, Any]) -> Task:
    """The task with these settings, created once per process."""
    return _open_task(tuple(sorted(run_config.items())))
