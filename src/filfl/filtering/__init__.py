"""Client filtering: which combination of clients averages into the best model. No torch in here.

A new filter is one file here and one line below.
"""

from filfl.filtering.base import Client, Filter, Filtering, Reward, Step
from filfl.filtering.exhaustive import opt
from filfl.filtering.greedy import dgf, rgf
from filfl.filtering.keep_all import keep_all
from filfl.filtering.local_search import local_search

FILTERS: dict[str, Filter] = {
    "keep-all": keep_all,
    "dgf": dgf,
    "rgf": rgf,
    "opt": opt,
    "local-search": local_search,
}

__all__ = [
    "FILTERS",
    "Client",
    "Filter",
    "Filtering",
    "Reward",
    "Step",
    "dgf",
    "keep_all",
    "local_search",
    "opt",
    "rgf",
]
