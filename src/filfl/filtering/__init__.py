"""Client filtering: find the combination of clients whose average is the best model.

To add a filter, add one file here and one line below.
"""

from filfl.filtering.base import Client, Filter, FilterFunction, Filtering, Reward, Step
from filfl.filtering.exhaustive import Opt, opt
from filfl.filtering.greedy import DGF, RGF, dgf, rgf
from filfl.filtering.keep_all import KeepAll, keep_all
from filfl.filtering.local_search import LocalSearch, local_search
from filfl.filtering.oracle import Oracle
from filfl.filtering.prune import Prune, prune
from filfl.filtering.rewards import OnSamples

FILTERS: dict[str, type[Filter]] = {
    "keep-all": KeepAll,
    "dgf": DGF,
    "rgf": RGF,
    "opt": Opt,
    "local-search": LocalSearch,
    "prune": Prune,
    "oracle": Oracle,
}

__all__ = [
    "DGF",
    "FILTERS",
    "RGF",
    "Client",
    "Filter",
    "FilterFunction",
    "Filtering",
    "KeepAll",
    "LocalSearch",
    "OnSamples",
    "Opt",
    "Oracle",
    "Prune",
    "Reward",
    "Step",
    "dgf",
    "keep_all",
    "local_search",
    "opt",
    "prune",
    "rgf",
]
