"""Which executor opens the `Clients` door."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Literal

from torch import nn

from filfl.clients import Job, Learners
from filfl.config import Config
from filfl.data import FederatedData
from filfl.errors import ConfigError
from filfl.evaluation import Loss
from filfl.simulation.attacked import AttackedClients
from filfl.simulation.processes import ProcessClients
from filfl.simulation.serial import SerialClients
from filfl.simulation.setup import CannotRun, keep_freed_memory
from filfl.simulation.spill import SpillingClients
from filfl.simulation.trial import why_not_batched
from filfl.simulation.vectorized import VectorizedClients
from filfl.weights import FlatModel

Mode = Literal["auto", "serial", "vectorized", "processes"]

SMALL = 300_000
"""Up to so many weights the time of a step goes into starting its kernels, and clients are batched."""
LONG = 100
"""From so many clients trained in a run on, worker processes are worth their start of some seconds."""


@contextmanager
def open_clients(
    config: Config,
    data: FederatedData,
    net: FlatModel,
    loss: Loss,
    build: Callable[[], FlatModel],
    job: Job,
    workers: int,
    say: Callable[[str], None],
) -> Iterator[Learners]:
    """The simulated clients of a run, as `execution` says, for as long as the run takes.

    `build` makes another network like `net`, in this process or in another; `job` is that of any round.
    """
    keep_freed_memory()
    options = config.execution
    if options.memory is not None and net.device.type != "cpu":
        raise ConfigError(f"execution.memory is a limit for the CPU, and this run is on {net.device}: take it away")
    mode = choose(config, data, net, loss, job, workers) if options.mode == "auto" else options.mode
    reason = why_not_batched(data, net, loss, job) if options.mode == "vectorized" else None
    clients: Learners | None = None
    with ExitStack() as opened:
        if mode == "vectorized" and not reason:
            clients = opened.enter_context(closing(VectorizedClients(data, net, loss, workers)))
        elif mode == "processes":
            try:
                clients = opened.enter_context(ProcessClients(data, net, loss, build, workers))
            except CannotRun as error:
                reason = str(error)
        if reason and options.mode != "auto":
            say(f'execution.mode = "{mode}" cannot be used here: {reason}. One client after the other instead.')
        clients = clients or SerialClients(data, net, loss)
        if len(bad := config.attack.bad(data.num_clients, config.seed)):
            clients = AttackedClients(clients, net.layout, config.attack, bad)
        if options.memory is not None:
            clients = SpillingClients(clients, net.layout, options.memory * 1e9)
        yield clients


def choose(config: Config, data: FederatedData, net: FlatModel, loss: Loss, job: Job, workers: int) -> Mode:
    """The rule of `auto`: what can be batched and is small is vectorized; of the rest, long runs go to processes.

    Whether to vectorize goes by the model alone, since its results differ in the last digits from the others'. Serial
    and processes agree to the bit.
    """
    on_cpu = net.device.type == "cpu"
    small = net.layout.num_trained <= SMALL and not (on_cpu and slow_in_batches(net.module))
    if small and why_not_batched(data, net, loss, job) is None:
        return "vectorized"
    long = config.rounds * config.selection.k >= LONG
    return "processes" if on_cpu and long and workers > 1 else "serial"


def slow_in_batches(module: nn.Module) -> bool:
    """Whether it has convolutions, which a CPU computes slower in groups than one by one."""
    return any(isinstance(part, nn.modules.conv._ConvNd) for part in module.modules())
