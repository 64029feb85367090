"""What two colluding clients can do to a run: `python benchmarks/colluders.py` prints the table of docs/logits.md.

The first client sends w_t + factor (w - w_t) with a negative factor. The second, its accomplice, makes the filter keep
it: the accomplice claims logits, or sends weights, that make their joint average good on the filtering set. In some
plans both attack, and neither looks bad whenever it is judged.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal
from unittest import mock

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn.functional import cross_entropy

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
    between: bool = False
    """Both attack, but only in rounds without a filtering: they are honest whenever they are filtered."""
    careful: bool = False
    """Both send the most opposite update that does not raise the loss on V by two standard errors as one of K."""
    right_on_V: bool = False
    """Both change their bad update by gradient steps until, as one of K, it lowers the loss on V."""
    pair: bool = False
    """Both change their bad updates by gradient steps until each, as one of K, is harmless on V and both are not."""


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
    "both, only between filterings": Plan(between=True, uploads="what it trained"),
    "both, only between filterings, factor -1": Plan(between=True, uploads="what it trained", factor=-1.0),
    "both, as far as the screen allows": Plan(careful=True, uploads="what it trained"),
    "both, as far as the screen allows between filterings": Plan(careful=True, between=True, uploads="what it trained"),
    "both, each harmless, between filterings": Plan(between=True, pair=True, uploads="what it trained"),
    "both, right on V and wrong elsewhere": Plan(right_on_V=True, uploads="what it trained"),
}
K: int = CONFIG["selection.k"]
FACTORS = (-40.0, -20.0, -10.0, -6.0, -4.0, -3.0, -2.0, -1.0, -0.5, -0.25)


class Poisoning(Forwarding):
    """Clients of which two train as the plan says."""

    def __init__(self, clients: TrainingClients, V: FilteringSet, plan: Plan) -> None:
        super().__init__(clients)
        self._V, self._plan = V, plan

    def train(self, t: int, ids: Sequence[int], weights: Weights) -> dict[int, Update | Failure]:
        replies = self._clients.train(t, ids, weights)
        plan, w_t, factor = self._plan, weights.vector, self._plan.factor
        filters = len(ids) > K
        steps = {k: sent(reply).vector - w_t for k in (BAD, ACCOMPLICE) if isinstance(reply := replies.get(k), Update)}
        if plan.between or plan.careful or plan.right_on_V:
            honest = (plan.between and filters) or (plan.pair and len(steps) < 2)
            bad = (
                {}
                if honest
                else self._pair(steps, weights)
                if plan.pair
                else {k: self._together(step, weights) for k, step in steps.items()}
            )
        else:
            bad = {BAD: factor * steps[BAD]} if BAD in steps else {}
            if plan.weights and steps.keys() == {BAD, ACCOMPLICE}:
                bad[ACCOMPLICE] = (2 - factor) * steps[BAD]
        for k, step in bad.items():
            reply = replies[k]
            assert isinstance(reply, Update)
            replies[k] = replace(reply, weights=Weights(w_t + step, weights.integers))
        return replies

    def _together(self, step: Tensor, weights: Weights) -> Tensor:
        """What each of the two sends instead of its step."""
        if self._plan.careful:
            before = self._losses(weights, torch.zeros_like(step))
            for factor in FACTORS:
                rise = self._losses(weights, factor * step) - before
                if float(rise.mean()) < 1.9 * float(rise.std()) / len(rise) ** 0.5:
                    return factor * step
            return step
        bad = (self._plan.factor * step).requires_grad_()
        if self._plan.right_on_V:
            goal = float(self._losses(weights, torch.zeros_like(step)).mean()) - 0.02
            optimizer = torch.optim.Adam([bad], lr=0.02)
            for _ in range(150):
                loss = self._losses(weights, bad).mean()
                if float(loss) < goal:
                    break
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        return bad.detach()

    def _pair(self, steps: Mapping[int, Tensor], weights: Weights) -> dict[int, Tensor]:
        """Two steps that raise the loss on V only together."""
        pair = [(-2 * step).requires_grad_() for step in steps.values()]
        allowed = float(self._losses(weights, torch.zeros_like(pair[0])).mean()) - 0.02
        longest = 10 * max(float(step.norm()) for step in steps.values())
        optimizer = torch.optim.Adam(pair, lr=0.02)
        for _ in range(80):
            harm = self._losses(weights, pair[0] + pair[1]).mean().clamp(max=8)
            loss = 10 * sum((self._losses(weights, step).mean() - allowed).clamp(min=0) for step in pair) - harm
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                for step in pair:
                    step *= min(1.0, longest / float(step.norm()))
        return {k: step.detach() for k, step in zip(steps, pair, strict=True)}

    def _losses(self, weights: Weights, step: Tensor) -> Tensor:
        """The loss on each sample of V where one of K clients makes this step and the others none."""
        with self._V.networks.network() as net, torch.set_grad_enabled(step.requires_grad):
            vector = (weights.vector + step / K)[: net.layout.num_trained]
            state = {entry.name: v for entry, v in zip(net.layout.trained, net.layout.views(vector), strict=True)}
            x, y = self._V.samples.batch(torch.arange(len(self._V)))
            return cross_entropy(functional_call(net.module, state, (x,)), y, reduction="none")


def sent(update: Update) -> Weights:
    assert isinstance(update.weights, Weights)
    return update.weights


class Colluding(LogitCache):
    """Clients of which two claim and upload as the plan says."""

    def __init__(self, clients: TrainingClients, V: FilteringSet, plan: Plan) -> None:
        super().__init__(Poisoning(clients, V, plan), V)
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
