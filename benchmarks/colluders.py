"""What two colluding clients can do to a run: `python benchmarks/colluders.py` prints the table of docs/logits.md.

The first client sends w_t + factor (w - w_t) with a negative factor. The second, its accomplice, makes the filter keep
it: the accomplice claims logits, or sends weights, that make their joint average good on the filtering set.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal
from unittest import mock

import numpy as np
import torch
from torch import Tensor

import filfl
from filfl.core.clients import Failure, TrainingClients, Update
from filfl.filtering.filtering_set import FilteringSet
from filfl.logits.messages import LogitReply, LogitRequest
from filfl.simulation.wrappers.forwarding import Forwarding
from filfl.simulation.wrappers.logit_cache import LogitCache
from filfl.weights import Weights

BAD, ACCOMPLICE = 0, 1
SCALE = 10.0
"""The logit of the right class in a claim."""

CONFIG: dict[str, Any] = {
    "rounds": 40,
    "data.clients": 20,
    "filter.size": 100,
    "filter.empty": "zero",
    "filter.period": 5,
    "selection.name": "random",
    "selection.k": 5,
    "evaluate.every": 40,
    "execution.workers": 1,
}


@dataclass(frozen=True)
class Plan:
    """How the two clients attack."""

    factor: float = -4.0
    """Of the bad client's update."""
    claims: int = 0
    """The accomplice claims logits that make the average of this many clients right on V: the bad client, itself and
    others like the global model. 0 claims what it trained."""
    wrong: float = 0.0
    """The share of V's labels that the accomplice does not know."""
    uploads: Literal["what it trained", "nothing", "every other time"] = "nothing"
    """What the accomplice uploads after a claim."""
    weights: bool = False
    """The accomplice trains weights whose average with the bad client's is w, and claims and sends them."""


NOBODY = "nobody attacks"
PLANS = {
    NOBODY: Plan(factor=1.0, uploads="what it trained"),
    "nobody attacks, one client never uploads": Plan(factor=1.0),
    "the bad client alone": Plan(uploads="what it trained"),
    "the accomplice never uploads": Plan(claims=2),
    "the accomplice never uploads, 20 % of its labels wrong": Plan(claims=2, wrong=0.2),
    "the accomplice uploads other weights": Plan(claims=2, uploads="what it trained"),
    "the accomplice uploads other weights, 20 % wrong": Plan(claims=2, wrong=0.2, uploads="what it trained"),
    "the accomplice uploads every other time, 20 % wrong": Plan(claims=2, wrong=0.2, uploads="every other time"),
    "a claim for a set of six, 20 % wrong": Plan(claims=6, wrong=0.2),
    "a claim for a set of six, 20 % wrong, factor -1": Plan(claims=6, wrong=0.2, factor=-1.0),
    "never uploads, 20 % wrong, factor -1": Plan(claims=2, wrong=0.2, factor=-1.0),
    "never uploads, 20 % wrong, factor -20": Plan(claims=2, wrong=0.2, factor=-20.0),
    "a false claim without a bad client": Plan(claims=1, wrong=0.2, factor=1.0),
    "true weights that make up for the bad client": Plan(weights=True, uploads="what it trained"),
    "true weights that make up for it, factor -1": Plan(weights=True, uploads="what it trained", factor=-1.0),
}


class Poisoning(Forwarding):
    """Clients of which two train as the plan says."""

    def __init__(self, clients: TrainingClients, plan: Plan) -> None:
        super().__init__(clients)
        self._plan = plan

    def train(self, t: int, ids: Sequence[int], weights: Weights) -> dict[int, Update | Failure]:
        replies = self._clients.train(t, ids, weights)
        w_t, factor = weights.vector, self._plan.factor
        bad, other = replies.get(BAD), replies.get(ACCOMPLICE)
        if isinstance(bad, Update):
            step = sent(bad).vector - w_t
            replies[BAD] = replace(bad, weights=Weights(w_t + factor * step, weights.integers))
            if self._plan.weights and isinstance(other, Update):
                replies[ACCOMPLICE] = replace(other, weights=Weights(w_t + (2 - factor) * step, weights.integers))
        return replies


def sent(update: Update) -> Weights:
    assert isinstance(update.weights, Weights)
    return update.weights


class Colluding(LogitCache):
    """Clients of which two claim and upload as the plan says."""

    def __init__(self, clients: TrainingClients, V: FilteringSet, plan: Plan) -> None:
        super().__init__(Poisoning(clients, plan), V)
        self._plan, self._asked = plan, 0
        rng = np.random.default_rng(0)
        y = V.targets().clone()
        unknown = torch.from_numpy(rng.random(len(y)) < plan.wrong)
        y[unknown] = torch.from_numpy(rng.integers(10, size=int(unknown.sum())))
        self._labels = y

    def train_for_logits(
        self, t: int, ids: Sequence[int], weights: Weights, request: LogitRequest
    ) -> dict[int, LogitReply | Failure]:
        replies = super().train_for_logits(t, ids, weights, request)
        bad, own, s = replies.get(BAD), replies.get(ACCOMPLICE), self._plan.claims
        if s and isinstance(bad, LogitReply) and isinstance(own, LogitReply):
            z_bad, z_w = self._V.outputs([sent(self._kept[BAD]), weights], request.samples)
            wanted = SCALE * torch.nn.functional.one_hot(self._labels, z_bad.shape[1]).to(z_bad)
            z: Tensor = s * wanted - (s - 2) * z_w - z_bad if s > 1 else wanted
            replies[ACCOMPLICE] = replace(own, logits=request.encoding.encode(z))
        return replies

    def upload(self, t: int, ids: Sequence[int]) -> dict[int, Update | Failure]:
        replies = super().upload(t, ids)
        self._asked += ACCOMPLICE in replies
        silent = self._plan.uploads == "nothing" or (self._plan.uploads == "every other time" and self._asked % 2)
        if ACCOMPLICE in replies and silent:
            replies[ACCOMPLICE] = Failure("timeout")
        return replies


def accuracy(plan: Plan, settings: dict[str, Any], seed: int) -> float:
    """The final accuracy of a run in which two clients follow the plan."""
    with mock.patch("filfl.simulation.build.LogitCache", lambda clients, V: Colluding(clients, V, plan)):
        result = filfl.simulate({**CONFIG, **settings, "seed": seed}, progress=False)
    return float(result.records[-1]["test_accuracy"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--filters", nargs="*", default=["dgf", "local-search", "prune"])
    parser.add_argument("--transport", default="logits", choices=["logits", "models"])
    parser.add_argument("--set", nargs="*", default=[], help="KEY=VALUE")
    parser.add_argument("--plans", nargs="*", default=list(PLANS))
    args = parser.parse_args()
    print("| final accuracy, difference in points |", " | ".join(args.filters), "|", flush=True)
    print("|---|" + "---|" * len(args.filters))
    found: dict[tuple[str, str], Any] = {}
    for name in dict.fromkeys([NOBODY, *args.plans]):
        for filter in args.filters:
            settings = {"filter.name": filter, "filter.transport": args.transport, "filter.reward": "ensemble"}
            settings |= {key: json.loads(value) for key, value in (each.split("=") for each in args.set)}
            found[name, filter] = np.array([accuracy(PLANS[name], settings, seed) for seed in range(args.seeds)])
        print(f"| {name} |", " | ".join(cell(found[name, f], found[NOBODY, f]) for f in args.filters), "|", flush=True)


def cell(found: Any, nobody: Any) -> str:
    """The mean over the seeds, and the difference to the same seeds without an attack, with its standard error."""
    points = 100 * (found - nobody)
    if not points.any():
        return f"{found.mean():.3f}"
    return f"{found.mean():.3f}, {points.mean():+.1f} ± {points.std(ddof=1) / len(points) ** 0.5:.1f}"


if __name__ == "__main__":
    main()
