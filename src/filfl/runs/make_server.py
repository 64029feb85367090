"""The server that a config describes, for the simulator and for Flower."""

from filfl.config.config import Config
from filfl.core.clients import Clients
from filfl.core.selector import Selector
from filfl.core.server import FilterRound, Problem, Server
from filfl.filtering.assessment import Assess
from filfl.filtering.at_least import AtLeast
from filfl.filtering.base import FilterFunction
from filfl.filtering.by_logits import ByLogits
from filfl.filtering.by_models import ByModels
from filfl.filtering.filtering_set import FilteringSet
from filfl.filtering.fitness import Fitness
from filfl.filtering.judges import JUDGES, Judge, OnServer, Trusted
from filfl.filtering.schedule import Periodic
from filfl.filtering.screen import Screened, UpdateScreen
from filfl.logits.encoding import Encoding
from filfl.weights import Layout


def make_server(
    config: Config,
    clients: Clients,
    layout: Layout,
    V: FilteringSet | None,
    *,
    judge: Judge | None = None,
    problem: Problem | None = None,
    V_from_clients: bool = False,
    trusted: Trusted | None = None,
    faulty: frozenset[int] = frozenset(),
) -> Server:
    """V: the server's filtering set. judge: how sets are judged where the server has a function instead of V.
    V_from_clients: whether V has samples of all clients. trusted: the clients that are known to be trusted, if any;
    faulty: those that are known to be faulty."""
    fitness, filters = None, config.filter.method is not None
    if filters and config.filter.judged_by_clients:
        fitness = Fitness.of(None, from_clients=trusted is None)
    elif V is not None and (filters or config.aggregation.uses_V):
        fitness = Fitness.of(V, V_from_clients)
    return Server(
        seed=config.seed,
        clients=clients,
        layout=layout,
        availability=config.availability,
        schedule=Periodic(config.filter.when, config.filter.period),
        filter_round=make_filter_round(config, V, judge, fitness, trusted),
        cap=config.filter.cap,
        selector=Selector(config.seed, config.selection),
        aggregation=config.aggregation,
        guard=config.guard,
        screen=UpdateScreen(V) if V is not None and filters and config.filter.screen else None,
        problem=problem,
        faulty=faulty,
        warnings=fitness.at_start if fitness else (),
    )


def make_filter_round(
    config: Config, V: FilteringSet | None, judge: Judge | None, fitness: Fitness | None, trusted: Trusted | None
) -> FilterRound | None:
    """The filter round of a config; None where nothing is filtered."""
    options = config.filter
    if options.method is None:
        return None
    empty_is_global = options.empty == "global"
    assess = Assess(config.seed, options.valued_by, options.honest_gain, fitness)
    method: FilterFunction = options.method
    least = options.least
    if options.screen and least is None:
        # Of a small S^f, a few clients that collude can be the majority, which the screen of a round trusts.
        least = Selector(config.seed, config.selection).K
    if least is not None:
        method = AtLeast(method, least)
    if options.screens:
        method = Screened(method, least or 1)
    if options.transport == "logits":
        assert V is not None
        encoding = Encoding(options.precision, options.top)
        return ByLogits(config.seed, method, V, encoding, options.part, empty_is_global, assess)
    if options.data in JUDGES:
        judge = JUDGES[options.data](config.seed, trusted)
    elif V is not None:
        judge = OnServer(V)
    assert judge is not None
    return ByModels(
        config.seed,
        method,
        judge,
        ensemble=V if options.surrogate else None,
        empty_is_global=empty_is_global,
        verify=options.verify,
        assess=assess,
        values_on=V if options.valued_by else None,
        optimum=options.optimum,
    )
