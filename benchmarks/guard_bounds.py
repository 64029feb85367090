"""How far apart the replies of honest clients are: the reason for the bounds of `filfl.core.guard`.

python benchmarks/guard_bounds.py            # all datasets (FILFL_DATA has FEMNIST, Shakespeare and CIFAR-10)
python benchmarks/guard_bounds.py mnist-5k   # one of them

Clients with heterogeneous data train for several rounds, with FedAvg and FedProx, and with wrong labels. Every reply is
compared with the median of the others, as the guard does: the norm of the update, the number of examples, the loss and
the norm of the gradient at the global model. A loss and a gradient count as at least 1, as in the guard. "Few" is the
worst that a group of three of these clients could show: the largest value over the second smallest. The last column
has the largest norm of an update over that of the global model. The script prints a Markdown table.
"""

import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from filfl.config.experiment import Experiment
from filfl.core.clients import Failure, Update
from filfl.core.guard import Guard
from filfl.core.queries import GradientQuery, LossQuery, Query
from filfl.core.round import filfl_round
from filfl.errors import FilflError
from filfl.evaluation import cross_entropy
from filfl.report.formatting import markdown_rows
from filfl.simulation.build import make_parts, open_server
from filfl.system import Stopwatch, one_thread
from filfl.weights import Weights
from problems import uploads

DATA: dict[str, tuple[str, dict[str, Any]]] = {
    "mnist-5k": ("demo", {}),
    "femnist": ("poc-femnist", {}),
    "shakespeare": ("poc-shakespeare", {"data.most": 10**6}),
    "cifar10": ("poc-cifar10", {}),
}
"""The experiment, and what it takes to have all samples of every client: their numbers are compared, too."""
RUNS: dict[str, dict[str, Any]] = {
    "FedAvg": {},
    "FedProx, 30 % wrong labels": {"algorithm.name": "fedprox", "data.noisy": 0.3},
}
SEEDS, ROUNDS, K = 3, 8, 20
ASKED = 3
"""In how many rounds the clients are also asked for losses and gradients."""


@dataclass
class Worst:
    """The largest ratios so far, by what was compared."""

    ratios: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    def see(self, what: str, values: Sequence[float], floor: float = 0.0) -> None:
        """Compare every value with the median of the others, and with the second smallest of all."""
        if len(values) < 3:
            return
        ordered = sorted(values)
        others = ordered[:-1]
        self.keep(what, ordered[-1] / max(others[len(others) // 2], floor))
        self.keep(f"{what}, few", ordered[-1] / max(ordered[1], floor))

    def keep(self, what: str, ratio: float) -> None:
        self.ratios[what] = max(self.ratios[what], ratio)


@dataclass(frozen=True)
class Watched:
    """Clients whose replies are measured."""

    clients: Any
    worst: Worst

    def __getattr__(self, name: str) -> Any:
        return getattr(self.clients, name)

    def train(self, t: int, ids: Sequence[int], weights: Weights) -> dict[int, Update | Failure]:
        replies: dict[int, Update | Failure] = self.clients.train(t, ids, weights)
        trained = uploads(replies)
        norms = [float((w.vector - weights.vector).double().norm()) for w in trained.values()]
        self.worst.see("norm", norms)
        self.worst.see("examples", self.clients.num_examples(list(trained)).tolist())
        self.worst.keep("of the model", max(norms) / max(1.0, float(weights.vector.double().norm())))
        if t <= ASKED:
            asked: dict[str, Query] = {"loss": LossQuery("validation"), "gradient": GradientQuery()}
            for name, query in asked.items():
                found = self.clients.query(query, ids, weights).values()
                self.worst.see(name, [float(torch.as_tensor(each).double().norm()) for each in found], floor=1.0)
        return replies


def measured(name: str, changes: Mapping[str, Any]) -> dict[str, float]:
    worst = Worst()
    for seed in range(SEEDS):
        common = {"seed": seed, "rounds": ROUNDS, "filter.name": "none", "selection.name": "random", "selection.k": K}
        config = Experiment.load(name).config({**common, **changes})
        parts = make_parts(config, cross_entropy, {}, lambda text: None)
        with one_thread(), open_server(parts, lambda text: None) as opened:
            server, state = replace(opened, clients=Watched(opened.clients, worst)), parts.start
            for t in range(1, ROUNDS + 1):
                state, _ = filfl_round(t, state, server, Stopwatch())
    return worst.ratios


def all_sizes(name: str, changes: Mapping[str, Any]) -> float:
    """The largest number of examples of any client, over the median of all others."""
    worst = Worst()
    worst.see("examples", np.asarray(Experiment.load(name).config(changes).data.load(0).num_train).tolist())
    return worst.ratios["examples"]


COLUMNS = ["norm", "norm, few", "examples", "examples, few", "examples of all", "loss", "gradient", "of the model"]


def main(datasets: Sequence[str]) -> None:
    rows = []
    for data in datasets or DATA:
        name, all_samples = DATA[data]
        for run, changes in RUNS.items():
            try:
                found = measured(name, changes) | {"examples of all": all_sizes(name, all_samples)}
            except FilflError as error:
                rows.append([data, run, str(error)])
                continue
            rows.append([data, run, *(f"{found[column]:.3g}" for column in COLUMNS)])
            print(rows[-1], file=sys.stderr, flush=True)
    print("\n".join(markdown_rows(["data", "clients", *COLUMNS], rows)))
    allowed = Guard()
    print(f"\nallowed: norm {allowed.norm:g}, examples {allowed.examples:g}, losses and gradients {allowed.answers:g}")


if __name__ == "__main__":
    main(sys.argv[1:])
