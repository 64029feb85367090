"""filfl's round over arrays of clients of equal size, assembled as in `filfl.simulate`, but run one round at a time."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from filfl.clock import Stopwatch
from filfl.config import Config
from filfl.data import FederatedData
from filfl.evaluation import cross_entropy
from filfl.round import filfl_round
from filfl.server import FilFL, Record, State
from filfl.simulation.assembly import open_server
from filfl.simulation.serial import samples_on
from filfl.simulation.setup import network, one_thread
from filfl.weights import FlatModel

CPU = torch.device("cpu")


@dataclass
class Simulation:
    """A simulated federation that runs one round per call."""

    fl: FilFL
    net: FlatModel
    state: State
    t: int = 0
    clock: Stopwatch = field(default_factory=Stopwatch)

    def round(self) -> Record:
        self.t += 1
        self.state, record = filfl_round(self.t, self.state, self.fl, self.clock)
        return record


def equal_clients(x: NDArray[Any], y: NDArray[np.int64], num_samples: int) -> FederatedData:
    """Clients that own `num_samples` consecutive samples of x and y each."""
    nothing = (x[:1], y[:1])
    owners = np.arange(len(y)) // num_samples
    return FederatedData.from_arrays(x, y, owners, test=nothing, filtering=nothing, validation=0.0)


@contextmanager
def federation(table: Mapping[str, Any], data: FederatedData, model: Callable[[], nn.Module]) -> Iterator[Simulation]:
    """A federation of these clients without a filter; `table` is a config."""
    config = Config.from_table({"data": {"name": "arrays"}, "filter": {"name": "none"}, **table})
    build = partial(network, model, config.seed, CPU)
    with one_thread():
        net = build()
        nothing = samples_on(net, data, data.filter_x, data.filter_y)
        with open_server(config, data, net, build, cross_entropy, nothing) as fl:
            yield Simulation(fl, net, State(net.weights()))
