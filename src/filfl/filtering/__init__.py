"""Client filtering: find the combination of clients whose average is the best model.

To add a filter, add one file here and one line below.
"""

from filfl.filtering.base import Client, Filter, FilterFunction, Filtering, Reward, Step
from filfl.filtering.exhaustive import Opt, opt
from filfl.filtering.greedy import DGF, RGF, dgf, rgf
from filfl.filtering.keep_all import KeepAll, keep_all
from filfl.filtering.local_search import LocalSearch, local_search

FILTERS: dict[str, type[Filter]] = {
    "keep-all": KeepAll,
    "dgf": DGF,
    "rgf": RGF,
    "opt": Opt,
    "local-search": LocalSearch,
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
    "Opt",
    "Reward",
    "Step",
    "dgf",
    "keep_all",
    "local_search",
    "opt",
    "rgf",
]
