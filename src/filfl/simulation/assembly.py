"""A config made into what Algorithm 1 requires, with clients on this machine."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial

from torch import Tensor

from filfl.clients import Job
from filfl.config import Config
from filfl.cores import num_cores
from filfl.data import FederatedData
from filfl.evaluation import Loss, Samples
from filfl.filtering import FILTERS, Filter
from filfl.filtering.judges import JUDGES
from filfl.selection import Selects
from filfl.server import FilFL
from filfl.simulation.executors import open_clients
from filfl.simulation.inference import Inference, how_many
from filfl.simulation.rewards import make_reward, make_surrogate
from filfl.weights import FlatModel


@contextmanager
def open_server(
    config: Config,
    data: FederatedData,
    net: FlatModel,
    build: Callable[[], FlatModel],
    loss: Loss,
    filter_set: Samples,
    *,
    filter: Filter | None = None,
    selection: Selects | None = None,
    objective: Callable[[Tensor], float] | None = None,
    say: Callable[[str], None] = print,
) -> Iterator[FilFL]:
    """The server with its clients, for as long as the run takes. `build` makes another network like `net`;
    `objective` is F where it is known."""
    workers = config.execution.workers or num_cores()
    job = partial(_job, config)
    with (
        open_clients(config, data, net, loss, build, job(1), workers, say) as clients,
        closing(Inference(net, build, how_many(net, len(filter_set), workers))) as inference,
    ):
        yield FilFL(
            seed=config.seed,
            num_clients=data.num_clients,
            clients=clients,
            layout=net.layout,
            availability=config.availability,
            filter=filter or FILTERS.get(config.filter.name),
            reward=make_reward(config.filter, inference, filter_set, loss),
            judge=JUDGES.get(config.filter.data),
            when=config.filter.when,
            h=config.filter.period,
            n=config.filter.cap,
            selection=selection or config.selection,
            K=config.selection.k,
            job=job,
            aggregation=config.aggregation,
            surrogate=make_surrogate(config.filter, inference, filter_set, loss),
            verify=config.filter.verify,
            optimum=config.filter.optimum,
            objective=objective,
        )


def _job(config: Config, t: int) -> Job:
    training = config.training
    return Job(
        seed=config.seed,
        round=t,
        algorithm=config.algorithm,
        epochs=training.epochs,
        steps=training.steps,
        batch=training.batch,
        lr=training.lr_at(t),
        momentum=training.momentum,
        weight_decay=training.weight_decay,
    )
