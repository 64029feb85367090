"""filfl's round over arrays of clients of equal size, assembled as in `filfl.simulate`, but run one round at a time."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from filfl.config.config import Config, dotted_keys
from filfl.core.round import filfl_round
from filfl.core.server import Record, Server, State
from filfl.data import FederatedData
from filfl.evaluation import cross_entropy
from filfl.simulation.build import make_parts, open_server
from filfl.system import Stopwatch, one_thread
from filfl.weights import FlatModel

CPU = torch.device("cpu")


@dataclass
class Simulation:
    """A simulated federation that runs one round per call."""

    server: Server
    net: FlatModel
    state: State
    t: int = 0
    clock: Stopwatch = field(default_factory=Stopwatch)

    def round(self) -> Record:
        self.t += 1
        self.state, record = filfl_round(self.t, self.state, self.server, self.clock)
        return record


def equal_clients(x: NDArray[Any], y: NDArray[np.int64], num_samples: int) -> FederatedData:
    """Clients that own `num_samples` consecutive samples of x and y each."""
    nothing = (x[:1], y[:1])
    owners = np.arange(len(y)) // num_samples
    return FederatedData.from_arrays(x, y, owners, test=nothing, filtering=nothing, validation=0.0)


@contextmanager
def federation(table: Mapping[str, Any], data: FederatedData, model: Callable[[], nn.Module]) -> Iterator[Simulation]:
    """A federation of these clients without a filter; `table` is a config."""
    config = Config.read({"filter.name": "none", **dotted_keys(table)}).with_own(data=data, model=model)
    with one_thread():
        parts = make_parts(config, cross_entropy, {}, print)
        with open_server(parts, print) as server:
            yield Simulation(server, parts.net, parts.start)
