"""Which executor opens the `Clients` door."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from filfl.clients import Clients
from filfl.config import Config
from filfl.cores import num_cores
from filfl.data import FederatedData
from filfl.evaluation import Loss
from filfl.simulation.processes import ProcessClients
from filfl.simulation.serial import SerialClients
from filfl.simulation.setup import CannotRun
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
    if config.execution.mode == "processes":
        try:
            workers = ProcessClients(data, net, loss, build, config.execution.workers or num_cores())
        except CannotRun as reason:
            say(f'execution.mode = "processes": one client after the other instead, because {reason}')
        else:
            with workers as clients:
                yield clients
            return
    yield SerialClients(data, net, loss)
