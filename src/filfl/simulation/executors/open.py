"""The simulated clients of a run: the executor that the config asks for, and the wrappers around it."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from typing import Literal

from torch import nn

from filfl.config.config import Config
from filfl.core.clients import TrainingClients
from filfl.data import FederatedData
from filfl.errors import ConfigError
from filfl.evaluation import Augment, Loss, Samples, full_gradient, mean_loss
from filfl.simulation.executors.pool import CannotRun
from filfl.simulation.executors.processes import ProcessClients
from filfl.simulation.executors.serial import LocalTraining, SerialClients
from filfl.simulation.executors.vectorized import VectorizedClients, why_not_batched
from filfl.simulation.wrappers.attack import AttackingClients, Knowledge
from filfl.simulation.wrappers.spill import SpillingClients
from filfl.system import keep_freed_memory, return_freed_memory
from filfl.weights import FlatModel

Mode = Literal["auto", "serial", "vectorized", "processes"]

SMALL = 300_000
"""Models with at most this many parameters, trained or frozen, are batched, because starting the kernels takes most of
the time of a step."""
LONG = 100
"""Worker processes are used for runs that train at least this many clients, because they take seconds to start."""


@contextmanager
def open_clients(
    config: Config,
    data: FederatedData,
    net: FlatModel,
    loss: Loss,
    build: Callable[[], FlatModel],
    workers: int,
    say: Callable[[str], None],
    augment: Augment | None = None,
    V: Samples | None = None,
) -> Iterator[TrainingClients]:
    """The simulated clients of a run. `build` makes another network like `net`, in this process or in another. V is the
    filtering set, which attackers may know."""
    keep_freed_memory()
    options = config.execution
    training = LocalTraining.of(config, augment)
    if not config.training.is_sgd:
        config.training.new_optimizer(net.trained)  # raises where the optimizer does not fit the model
    if options.memory is not None and net.device.type != "cpu":
        raise ConfigError(f"execution.memory is for the CPU only, but this run is on {net.device}; remove it")
    mode = choose(config, data, net, loss, training, workers) if options.mode == "auto" else options.mode
    reason = why_not_batched(data, net, loss, training) if options.mode == "vectorized" else None
    clients: TrainingClients | None = None
    with ExitStack() as opened:
        opened.callback(return_freed_memory)
        if mode == "vectorized" and not reason:
            clients = opened.enter_context(closing(VectorizedClients(data, net, loss, training, workers)))
        elif mode == "processes":
            try:
                clients = opened.enter_context(closing(ProcessClients(data, net, loss, training, build, workers)))
            except CannotRun as error:
                reason = str(error)
        if reason and options.mode != "auto":
            say(f'execution.mode = "{mode}" is not available ({reason}); falling back to serial')
        clients = clients or SerialClients(data, net, loss, training)
        if len(bad := config.attack.bad(data.num_clients, config.seed)):
            knowledge = Knowledge(config.aggregation)
            if V:
                loss_on_V = partial(mean_loss, net, samples=V, loss=loss)
                gradient_on_V = partial(full_gradient, net, samples=V, loss=loss)
                knowledge = Knowledge(config.aggregation, loss_on_V, gradient_on_V)
            clients = AttackingClients(clients, net.layout, config.attack, bad, config.seed, knowledge)
        if options.memory is not None:
            clients = SpillingClients(clients, net.layout, options.memory * 1e9)
        yield clients


def choose(
    config: Config, data: FederatedData, net: FlatModel, loss: Loss, training: LocalTraining, workers: int
) -> Mode:
    """The rule of `auto`: vectorized for small models that can be batched; otherwise processes for long runs.

    Whether to vectorize depends on the model alone, since the results differ in the last digits. Serial and processes
    agree bit for bit.
    """
    on_cpu = net.device.type == "cpu"
    # A CPU computes convolutions more slowly in groups than one by one.
    slow = on_cpu and any(isinstance(part, nn.modules.conv._ConvNd) for part in net.module.modules())
    small = net.num_parameters <= SMALL and not slow
    if small and why_not_batched(data, net, loss, training) is None:
        return "vectorized"
    long = config.rounds * config.selection.k >= LONG
    return "processes" if on_cpu and long and workers > 1 else "serial"
