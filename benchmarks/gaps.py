"""The gap between the filters and the best subset of ten clients, which is found by exhaustive search."""

from statistics import mean
from typing import Any

import numpy as np

from filfl.filtering import FILTERS
from filfl.system import one_thread
from problems import found_sets, problem, with_size


def measure(quick: bool) -> dict[str, Any]:
    """The mean gap in the true reward to the optimum, over groups of ten MLP clients and 100 filtering samples."""
    groups = 2 if quick else 20
    gaps: dict[str, list[float]] = {"dgf": [], "local-search": [], "keep-all": []}
    for seed in range(groups):
        made = problem(with_size("mlp-100", n=10, seed=seed))
        with one_thread():
            R = made.reward()
            best = R(found_sets(FILTERS["opt"]()(made.clients, R, np.random.default_rng(0)))[0])
        found = {"dgf": made.dgf()["kept"], "keep-all": made.clients}
        if "local-search" in FILTERS:
            found["local-search"] = made.local_search()["kept"]
        for name, kept in found.items():
            gaps[name].append(best - R(frozenset(kept)))
    return {"groups": groups, "mean_gap": {name: mean(values) for name, values in gaps.items() if values}}
