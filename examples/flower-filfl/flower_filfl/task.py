"""What the server and the sites have in common: the data, the network, and how a site trains."""

from collections.abc import Mapping
from functools import cache
from typing import Any

import torch

from filfl import Config
from filfl.clients import Job
from filfl.data import FederatedData
from filfl.evaluation import cross_entropy
from filfl.simulation.serial import SerialClients
from filfl.simulation.setup import network
from filfl.weights import FlatModel


def load_config(settings: Mapping[str, Any]) -> Config:
    """The settings of [tool.flwr.app.config] as a filfl config: `filfl run` with it makes the same choices."""
    return Config.from_table(
        {
            "name": "flower-filfl",
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
            "aggregation": {"name": "by-examples"},  # what Flower's FedAvg does
        }
    )


class Site:
    """One site's work. It holds all sites' digits here; with your own data it would hold its own."""

    def __init__(self, config: Config) -> None:
        torch.set_num_threads(1)  # so that a sum does not depend on the machine
        self.config = config
        self.data: FederatedData = config.data.load(config.seed)
        self.net: FlatModel = network(self.new_module, config.seed, torch.device("cpu"))
        self._clients = SerialClients(self.data, self.net, cross_entropy)

    def new_module(self) -> torch.nn.Module:
        return self.config.model.build(self.data.sample_shape, self.data.classes)

    def train(self, site: int, state: Mapping[str, torch.Tensor], t: int) -> tuple[dict[str, torch.Tensor], int, float]:
        """Local SGD: the new weights, the number of examples, the train loss."""
        training = self.config.training
        job = Job(
            self.config.seed, t, self.config.algorithm, training.epochs, training.steps, training.batch, training.lr
        )
        update = self._clients.train([site], self.net.layout.flatten(state), job)[site]
        return self.net.layout.unflatten(update.weights), update.num_examples, update.train_loss

    def load(self, site: int) -> tuple[torch.nn.Module, Any, Any]:
        """What filfl's questions are answered with: the network, the site's training and validation batches."""
        samples = self._clients.samples
        parts = [samples.part(*self._clients.span(site, split)) for split in ("train", "validation")]
        return (self.new_module(), *(list(part.chunks()) for part in parts))


@cache
def open_site(settings: tuple[tuple[str, Any], ...]) -> Site:
    """Made once a process."""
    return Site(load_config(dict(settings)))


def site_of(run_config: Mapping[str, Any]) -> Site:
    return open_site(tuple(sorted(run_config.items())))
