"""The filter workloads: n trained clients, m filtering samples, and filfl's reward of a set of clients."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from filfl.core.clients import Failure, Update
from filfl.evaluation import Samples, cross_entropy
from filfl.filtering import FILTERS, Filtering, LocalSearch
from filfl.filtering.by_models import best_verified, ensemble_reward
from filfl.filtering.filtering_set import FilteringSet
from filfl.filtering.half_precision import Precision
from filfl.filtering.rewards import AverageReward
from filfl.models.cnn import LeafCNN, SmallCNN
from filfl.models.lstm import LSTM
from filfl.models.mlp import MLP
from filfl.simulation.build import network
from filfl.system import keep_freed_memory, num_cores, one_thread
from filfl.weights import FlatModel, Weights
from workloads import class_patterns

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Case:
    """The network, the number of clients and the number of filtering samples."""

    model: str
    n: int
    m: int
    lr: float
    seed: int = 0
    precision: Precision = "float32"
    """Of the evaluations of greedy filters."""

    @property
    def shape(self) -> tuple[int, ...]:
        return {"mlp": (784,), "lstm": (80,)}.get(self.model, (1, 28, 28))

    @property
    def classes(self) -> int:
        return {"mlp": 10, "lstm": 80}.get(self.model, 62)

    def build(self) -> nn.Module:
        models = {"mlp": MLP(), "lstm": LSTM(), "cnn": LeafCNN(), "small-cnn": SmallCNN(channels=(8, 16), hidden=64)}
        return models[self.model].build(self.shape, self.classes)


CASES = {
    "cnn-2000": Case("cnn", n=50, m=2000, lr=0.1),
    "cnn-500": Case("cnn", n=50, m=500, lr=0.1),
    "mlp-100": Case("mlp", n=50, m=100, lr=0.1),
    "lstm-34": Case("lstm", n=20, m=34, lr=0.5),
    "tiny": Case("mlp", n=6, m=40, lr=0.1),
}
CNN_FLOP = 2 * (28 * 28 * 32 * 25 + 14 * 14 * 64 * 25 * 32 + 3136 * 2048 + 2048 * 62)
"""Multiplications and additions of LEAF's CNN for one image, forward."""


@dataclass(frozen=True)
class Problem:
    """n trained clients, as the rows of one [n, d] tensor, and the filtering set V."""

    net: FlatModel
    w_t: Weights
    stack: Tensor
    V: FilteringSet

    @property
    def clients(self) -> list[int]:
        return list(range(len(self.stack)))

    def reward(self) -> AverageReward:
        """filfl's reward of a set of these clients: that of their averaged weights."""
        return self.V.judgement(self.w_t).reward(dict(enumerate(self.stack)), self.w_t)

    def dgf(self) -> dict[str, Any]:
        """Exact deterministic greedy filtering, with all the work that a filter round does for it."""
        with one_thread():
            R = self.reward()
            kept = found_sets(FILTERS["dgf"]()(self.clients, R, np.random.default_rng(0)))[0]
            return {"kept": sorted(kept), "evaluations": R.evaluations, "half_evaluations": R.half_evaluations}

    def local_search(self, verify: int = 1) -> dict[str, Any]:
        """Local search on the ensemble reward; true rewards then compare what it finds with keeping all clients."""
        with one_thread():
            R = self.reward()
            surrogate = ensemble_reward(self.V, dict(enumerate(self.stack)), self.w_t)
            found = LocalSearch()(self.clients, surrogate, np.random.default_rng(0))
            kept = best_verified(found_sets(found), self.clients, R, verify)
            return {"kept": sorted(kept), "evaluations": surrogate.evaluations, "verifications": R.evaluations}


def found_sets(filtering: Filtering) -> list[frozenset[int]]:
    """The set that a filter kept, then its runners-up."""
    sets = (filtering.kept, *filtering.runners_up)
    return [frozenset(k for k in found if isinstance(k, int)) for found in sets]


def uploads(replies: Mapping[int, Update | Failure]) -> dict[int, Weights]:
    """The weights of the clients that trained."""
    updates = {k: reply.weights for k, reply in replies.items() if isinstance(reply, Update)}
    return {k: weights for k, weights in updates.items() if isinstance(weights, Weights)}


def problem(case: Case, steps: int = 4, batch: int = 20) -> Problem:
    """Every client takes a few steps on its own data. Every third client has random labels, so that sets differ."""
    keep_freed_memory()  # as a run does
    rng = np.random.default_rng((case.seed, case.n, 7))
    draw = _samples(case)
    with one_thread():
        build = partial(network, case.build, case.seed, CPU)
        net = build()
        w_t = net.weights()
        stack = torch.empty(case.n, net.layout.num_floats)
        for k in range(case.n):
            net.load(w_t)
            for _ in range(steps):
                x, y = draw(rng, batch)
                if k % 3 == 2:
                    y = torch.from_numpy(rng.integers(case.classes, size=batch))
                gradients = torch.autograd.grad(functional.cross_entropy(net.module(x), y), net.trained)
                torch._foreach_add_(net.layout.views(net.vector), gradients, alpha=-case.lr)
            stack[k] = net.vector
        x, y = draw(rng, case.m)
    samples = Samples(x, y, torch.tensor(1.0), torch.tensor(0.0)).aligned()
    return Problem(
        net, w_t, stack, FilteringSet.of(net, samples, cross_entropy, build, num_cores(), precision=case.precision)
    )


def _samples(case: Case) -> Callable[[np.random.Generator, int], tuple[Tensor, Tensor]]:
    """A function that draws learnable samples: one noisy pattern per class; in text, the last token is the class."""
    patterns = class_patterns(case.classes, case.shape, case.seed)

    scale = np.float32(0.2 if case.model == "mlp" else 0.5)

    def text(rng: np.random.Generator, size: int) -> tuple[Tensor, Tensor]:
        x = rng.integers(case.classes, size=(size, *case.shape))
        return torch.from_numpy(x), torch.from_numpy((x[:, -1] + 1) % case.classes)

    def pattern(rng: np.random.Generator, size: int) -> tuple[Tensor, Tensor]:
        y = rng.integers(case.classes, size=size)
        noise = rng.standard_normal((size, *case.shape), dtype=np.float32)
        return torch.from_numpy(scale * (patterns[y] + noise)), torch.from_numpy(y)

    return text if case.model == "lstm" else pattern


def with_size(name: str, *, n: int | None = None, m: int | None = None, seed: int = 0) -> Case:
    """A case of another size, for the scaling curves and the tests."""
    case = CASES[name]
    return replace(case, n=n or case.n, m=m or case.m, seed=seed)
