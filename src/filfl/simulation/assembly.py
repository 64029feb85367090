"""A config made into what Algorithm 1 requires, with clients on this machine."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial

from torch import Tensor

from filfl.clients import Job, rehearsed_bytes, update_bytes
from filfl.config import Config
from filfl.cores import num_cores
from filfl.data import FederatedData
from filfl.evaluation import Loss, Samples
from filfl.filtering.judges import JUDGES
from filfl.server import ByLogits, FilFL
from filfl.simulation.executors import open_clients
from filfl.simulation.inference import Inference, how_many
from filfl.simulation.rehearsing import RehearsingClients
from filfl.simulation.rewards import make_by_logits, make_reward, make_surrogate, says_to
from filfl.weights import FlatModel, Layout


@contextmanager
def open_server(
    config: Config,
    data: FederatedData,
    net: FlatModel,
    build: Callable[[], FlatModel],
    loss: Loss,
    filter_set: Samples,
    *,
    objective: Callable[[Tensor], float] | None = None,
    say: Callable[[str], None] = print,
) -> Iterator[FilFL]:
    """The server with its clients, for as long as the run takes. `build` makes another network like `net`;
    `objective` is F where it is known."""
    workers = config.execution.workers or num_cores()
    job = partial(_job, config)
    with (
        open_clients(config, data, net, loss, build, job(1), workers, say) as learners,
        closing(Inference(net, build, how_many(net, len(filter_set), workers))) as inference,
    ):
        logits = make_by_logits(config.filter, inference, filter_set, loss)
        if logits and (more := more_by_logits(config, data, net.layout, logits)):
            say(more)
        yield FilFL(
            seed=config.seed,
            num_clients=data.num_clients,
            clients=RehearsingClients(learners, partial(says_to, inference)),
            layout=net.layout,
            availability=config.availability,
            filter=config.filter.method,
            reward=make_reward(config.filter, inference, filter_set, loss),
            judge=JUDGES.get(config.filter.data),
            when=config.filter.when,
            h=config.filter.period,
            n=config.filter.cap,
            selection=config.selection,
            K=config.selection.k,
            job=job,
            aggregation=config.aggregation,
            surrogate=make_surrogate(config.filter, inference, filter_set, loss),
            logits=logits,
            verify=config.filter.verify,
            optimum=config.filter.optimum,
            objective=objective,
        )


def more_by_logits(config: Config, data: FederatedData, layout: Layout, by: ByLogits) -> str | None:
    """A sentence where a filter round's clients would send more with logits than with models; None where not."""
    present = config.availability.most_available(data.num_clients)
    n = min(present, config.filter.cap or present)
    m = min(config.filter.part or len(by.V), len(by.V))
    K = min(config.selection.k, n)
    model, logits = update_bytes(layout) / 1e6, rehearsed_bytes(by.form, (m, *by.outputs)) / 1e6
    if n * logits + K * model <= n * model:
        return None
    return (
        f'filter.transport = "logits" sends more than "models" here, {n * logits + K * model:.3g} MB a filter round '
        f"against {n * model:.3g} MB: {n} times {logits:.3g} MB of logits and {K} models of {model:.3g} MB against {n} "
        f"models. Set filter.precision, filter.part or filter.top, or lower filter.size"
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
