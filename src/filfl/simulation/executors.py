"""Which executor opens the `Clients` door."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from filfl.clients import Clients
from filfl.config import Config
from filfl.data import FederatedData
from filfl.evaluation import Loss
from filfl.simulation.serial import SerialClients
from filfl.weights import FlatModel


@contextmanager
def open_clients(
    config: Config,
    data: FederatedData,
    net: FlatModel,
    loss: Loss,
    build: Callable[[], FlatModel],
    say: Callable[[str], None],
) -> Iterator[Clients]:
    """The simulated clients of a run, as `execution.mode` says, for as long as the run takes.

    `build` makes another network like `net`, in this process or in another.
    """
    yield SerialClients(data, net, loss)
