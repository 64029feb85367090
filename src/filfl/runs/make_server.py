"""The server that a config describes, for the simulator and for Flower."""

from filfl.config.config import Config
from filfl.core.clients import Clients
from filfl.core.selector import Selector
from filfl.core.server import FilterRound, Problem, Server
from filfl.filtering.by_logits import ByLogits
from filfl.filtering.by_models import ByModels
from filfl.filtering.filtering_set import FilteringSet
from filfl.filtering.judges import JUDGES, Judge, OnServer
from filfl.filtering.schedule import Periodic
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
) -> Server:
    """V: the server's filtering set. judge: how sets are judged where the server has a function instead of V."""
    return Server(
        seed=config.seed,
        clients=clients,
        layout=layout,
        availability=config.availability,
        schedule=Periodic(config.filter.when, config.filter.period),
        filter_round=make_filter_round(config, V, judge),
        cap=config.filter.cap,
        selector=Selector(config.seed, config.selection),
        aggregation=config.aggregation,
        problem=problem,
    )


def make_filter_round(config: Config, V: FilteringSet | None, judge: Judge | None = None) -> FilterRound | None:
    """The filter round of a config; None where nothing is filtered."""
    options = config.filter
    if options.method is None:
        return None
    empty_is_global = options.empty == "global"
    if options.transport == "logits":
        assert V is not None
        encoding = Encoding(options.precision, options.top)
        return ByLogits(config.seed, options.method, V, encoding, options.part, empty_is_global)
    if options.data in JUDGES:
        judge = JUDGES[options.data](config.seed)
    elif V is not None:
        judge = OnServer(V)
    assert judge is not None
    ensemble = V if options.reward == "ensemble" else None
    return ByModels(config.seed, options.method, judge, ensemble, empty_is_global, options.verify, options.optimum)
