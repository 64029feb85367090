"""A study of the filters: how close they get to the best set, at what cost, and what a whole run gains.

    python benchmarks/filter_study.py [--quick] [--jobs 2] [--out runs/filter-study]

It writes benchmarks/results/filter_study.json (every number), docs/images/filters.png, and the generated part of
docs/filters.md. --quick checks in a minute that everything works, and writes all of it to --out instead. The result of
every task is stored in --out, so that an interrupted study can resume. Seconds are CPU seconds of one thread, so that
other work on the machine hardly affects them. Real data is read from the folder FILFL_DATA. A dataset that is not there
is left out, and the page lists it.
"""

import argparse
import json
import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import spearmanr
from torch import Tensor, nn
from torch.nn import functional

import filfl
from filfl.config.config import Config
from filfl.config.experiment import Experiment
from filfl.errors import FilflError
from filfl.evaluation import Samples, cross_entropy, mean_loss, outputs
from filfl.filtering import FilterFunction, Filtering, dgf, keep_all, local_search, opt, rgf
from filfl.filtering.base import Client, Reward
from filfl.filtering.by_models import best_verified
from filfl.filtering.ensemble import EnsembleReward
from filfl.filtering.rewards import AverageReward
from filfl.rng import stream
from filfl.runs.files import write_atomic
from filfl.simulation.build import network
from filfl.simulation.executors.serial import LocalTraining, SerialClients, samples_on
from filfl.system import one_thread
from filfl.weights import FlatModel, Weights
from filter_page import write_page
from problems import found_sets, uploads
from racing import raced_dgf

ROOT = Path(__file__).parent.parent
VERIFY = 3
SMALL, LARGE = 10, 50
"""Clients per filtering: few enough to try all subsets, and as many as in the paper."""


SPARE = 5
"""Further clients, in case some cannot train: BatchNorm fails if the last batch has a single sample."""


@dataclass(frozen=True)
class World:
    """A dataset with its preset and changes that make it smaller. `late` is the late round, `runs` are the changes for
    whole runs."""

    title: str
    preset: str
    late: int
    changes: dict[str, Any] = field(default_factory=dict)
    runs: dict[str, Any] = field(default_factory=dict)


WORLDS = {
    "mnist5k": World(
        "MNIST-5k, a third of the clients with random labels",
        "demo",
        late=51,
        changes={"selection.name": "random", "filter.empty": "zero"},
        runs={"rounds": 60},
    ),
    "femnist": World(
        "FEMNIST",
        "femnist",
        late=31,
        changes={"filter.size": 100},
        runs={"rounds": 50, "availability.n": 20, "selection.k": 4},
    ),
    "shakespeare": World(
        "Shakespeare",
        "shakespeare",
        late=16,
        changes={"data.most": 120, "model.hidden": 32, "selection.k": 5},
        runs={"rounds": 60, "availability.n": 20, "selection.k": 4},
    ),
    "cifar10": World(
        "CIFAR-10",
        "cifar10",
        late=31,
        changes={"filter.size": 100, "selection.k": 5},
        runs={"rounds": 30, "availability.n": 20, "selection.k": 5},
    ),
}


@dataclass(frozen=True)
class Contender:
    """A filter, the reward that it uses, and the number of its sets that are verified."""

    filter: FilterFunction
    ensemble: bool = False
    verify: int = 0


CONTENDERS = {
    "keep-all": Contender(keep_all),
    "dgf": Contender(dgf),
    "rgf": Contender(rgf),
    "dgf+ensemble": Contender(dgf, ensemble=True),
    "rgf+ensemble": Contender(rgf, ensemble=True),
    "local-search+ensemble": Contender(local_search, ensemble=True),
    "local-search+ensemble+verify": Contender(local_search, ensemble=True, verify=VERIFY),
}
RACING, CHUNK, CERTAIN = "dgf+racing", 25, 2.0
"""DGF that reads V in chunks of CHUNK samples and decides once a - b is CERTAIN standard errors away from 0."""
RANDOM = "random"
"""Random sets of the same size as those of local search."""


def random_of_that_size(clients: Sequence[Client], reward: Reward[Client], rng: np.random.Generator) -> Filtering:
    """As many clients as local search would keep, chosen at random."""
    size = len(local_search(clients, reward, rng).kept)
    return Filtering(kept=tuple(clients[i] for i in rng.choice(len(clients), size=size, replace=False)))


ARMS: dict[str, dict[str, Any]] = {
    "keep-all": {"filter.name": "keep-all"},
    RANDOM: {"filter.reward": "ensemble"},
    "dgf": {"filter.name": "dgf"},
    "rgf": {"filter.name": "rgf"},
    "dgf+ensemble": {"filter.name": "dgf", "filter.reward": "ensemble"},
    "rgf+ensemble": {"filter.name": "rgf", "filter.reward": "ensemble"},
    "local-search+ensemble": {"filter.name": "local-search", "filter.reward": "ensemble"},
    "local-search+ensemble+verify": {
        "filter.name": "local-search",
        "filter.reward": "ensemble",
        "filter.verify": VERIFY,
    },
}


def batch_norm_mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10))


@dataclass(frozen=True)
class Stress:
    """A setting in which the surrogate may fail: the training of the clients and the network."""

    world: str
    kind: str
    value: float
    training: dict[str, Any]
    changes: dict[str, Any] = field(default_factory=dict)
    model: Callable[[], nn.Module] | None = None
    n: int = SMALL


MLP, CNN = "MNIST-5k, MLP", "FEMNIST, small CNN"
STRESSES = {
    **{
        f"femnist-lr-{lr:g}": Stress("femnist", f"{CNN}: learning rate", lr, {"lr": lr}, n=8) for lr in (0.02, 0.1, 0.3)
    },
    **{f"femnist-epochs-{e}": Stress("femnist", f"{CNN}: local epochs", e, {"epochs": e}, n=8) for e in (1, 5)},
    **{f"mnist5k-epochs-{e}": Stress("mnist5k", f"{MLP}: local epochs", e, {"epochs": e}) for e in (1, 2, 10, 50)},
    **{
        f"mnist5k-lr-{lr:g}": Stress("mnist5k", f"{MLP}: learning rate", lr, {"lr": lr}) for lr in (0.03, 0.1, 0.3, 1.0)
    },
    **{
        f"mnist5k-batchnorm-{e}": Stress(
            "mnist5k", f"{MLP} with BatchNorm: local epochs", e, {"epochs": e}, model=batch_norm_mlp
        )
        for e in (1, 2, 10)
    },
    **{
        f"cifar10-resnet-{e}": Stress(
            "cifar10",
            "CIFAR-10, small-resnet (BatchNorm): local epochs",
            e,
            {"epochs": e},
            {"model.name": "small-resnet", "model.width": 8, "filter.size": 50},
            n=8,
        )
        for e in (2, 5)
    },
}


class Trained:
    """Clients that trained from one w_t, with the server's filtering set: the same input for every filter."""

    def __init__(self, net: FlatModel, w_t: Weights, weights: dict[int, Tensor], V: Samples) -> None:
        self.net, self.w_t, self.weights, self.V = net, w_t, weights, V
        self.truth = self.reward()
        self._means: dict[frozenset[int], Tensor] = {}

    def reward(self) -> AverageReward:
        """The true reward, without any cached value."""
        return AverageReward(
            self.weights, lambda v: mean_loss(self.net, Weights(v, self.w_t.integers), self.V, cross_entropy)
        )

    @torch.no_grad()
    def losses(self, subset: frozenset[int], chunk: int) -> NDArray[np.float64]:
        """The losses of averaged weights on each sample of a chunk, for racing."""
        # Only a few sets are compared at a time. Those of earlier steps are not needed again.
        if subset not in self._means:
            self._means = {**dict(list(self._means.items())[-3:]), subset: self._mean(subset)}
        samples = self.V.part(chunk * CHUNK, chunk * CHUNK + CHUNK)
        answers = outputs(self.net, Weights(self._means[subset], self.w_t.integers), samples)
        return functional.cross_entropy(answers, samples.y, reduction="none").double().numpy()

    def _mean(self, subset: frozenset[int]) -> Tensor:
        return torch.stack([self.weights[k] for k in sorted(subset)]).mean(dim=0)

    def ensemble(self) -> EnsembleReward:
        answers = {k: outputs(self.net, Weights(v, self.w_t.integers), self.V) for k, v in self.weights.items()}
        return EnsembleReward(answers, self.V.y, cross_entropy)


def states(
    config: Config,
    rounds: Sequence[int],
    sizes: Sequence[int],
    training: dict[str, Any] | None = None,
    model: Callable[[], nn.Module] | None = None,
) -> Iterator[tuple[int, int, Trained]]:
    """(t, n, n clients trained from w_t), where w_t is the result of federated averaging without a filter."""
    data = config.data.load(config.seed)
    device = torch.device("cpu")
    make = model or partial(config.model.build, data.sample_shape, data.classes)
    net = network(make, config.seed, device)
    reached = {1: net.weights()}
    if max(rounds) > 1:
        changes = {"filter.name": "none", "rounds": max(rounds) - 1, "evaluate.every": max(rounds)}

        def keep(record: Any, state: Any) -> None:
            if record["round"] + 1 in rounds:
                reached[record["round"] + 1] = state.w

        filfl.simulate(config.with_changes(changes), model=model, callbacks=[keep])
    local = LocalTraining(config.seed, config.algorithm, replace(config.training, **(training or {})))
    clients = SerialClients(data, net, cross_entropy, local)
    filtering = data.with_filter_size(config.filter.size, config.seed)
    V = samples_on(net, data, filtering.filter_x, filtering.filter_y)
    for t in rounds:
        order = [int(k) for k in stream(config.seed, t, "shuffle").permutation(data.num_clients)[: max(sizes) + SPARE]]
        trained = clients.train(t, order, reached[t])
        able = {k: weights.vector for k, weights in uploads(trained).items()}
        for n in sizes:
            yield t, n, Trained(net, reached[t], dict(list(able.items())[:n]), V)


def judge(state: Trained, orders: int, seed: int) -> dict[str, dict[str, float]]:
    """Run every contender on one state: true reward, evaluations, seconds and size, as means over several orders."""
    n = len(state.weights)
    found: dict[str, list[dict[str, float]]] = {}
    if n <= SMALL:
        start = time.process_time()
        best = found_sets(opt(list(state.weights), state.truth))[0]
        found["opt"] = [_outcome(state, best, 2**n - 1, time.process_time() - start)]
    for i in range(orders):
        rng = np.random.default_rng([seed, i])
        order = [int(k) for k in rng.permutation(list(state.weights))]
        for name, contender in CONTENDERS.items():
            start = time.process_time()
            R = state.reward()
            surrogate = state.ensemble() if contender.ensemble else None
            filtering = contender.filter(order, surrogate or R, np.random.default_rng([seed, i]))
            sets = found_sets(filtering)
            kept = best_verified(sets, order, R, contender.verify) if contender.verify else sets[0]
            evaluations = R.evaluations + (surrogate.evaluations if surrogate else 0)
            seconds = time.process_time() - start
            # If a filter keeps no client, a round uses all of them.
            found.setdefault(name, []).append(_outcome(state, kept or frozenset(order), evaluations, seconds))
        start = time.process_time()
        kept, passes = raced_dgf(order, state.losses, -(-len(state.V) // CHUNK), CERTAIN)
        seconds = time.process_time() - start
        found.setdefault(RACING, []).append(_outcome(state, kept or frozenset(order), passes, seconds))
        size = int(found["local-search+ensemble"][-1]["size"])
        for _ in range(5):
            kept = frozenset(int(k) for k in rng.choice(order, size=size, replace=False))
            found.setdefault(RANDOM, []).append(_outcome(state, kept, 0, 0.0))
    return {name: {key: _mean(o[key] for o in outcomes) for key in outcomes[0]} for name, outcomes in found.items()}


def _outcome(state: Trained, kept: frozenset[int], evaluations: float, seconds: float) -> dict[str, float]:
    return {
        "reward": state.truth(kept),
        "evaluations": evaluations,
        "seconds": seconds,
        "size": len(kept),
        "below_all": max(0.0, state.truth(frozenset(state.weights)) - state.truth(kept)),
    }


def fidelity(state: Trained, seed: int) -> dict[str, float]:
    """How well the ensemble reward agrees with the true one on random sets of all sizes."""
    rng = np.random.default_rng([seed, 99])
    clients, E = list(state.weights), state.ensemble()
    drawn = [
        frozenset(int(k) for k in rng.choice(clients, size=rng.integers(1, len(clients) + 1), replace=False))
        for _ in range(200 if len(clients) <= SMALL else 30)
    ]
    true, surrogate = np.array([(state.truth(S), E(S)) for S in drawn]).T
    constant = true.std() == 0 or surrogate.std() == 0
    return {
        "correlation": 0.0 if constant else float(spearmanr(true, surrogate).statistic),
        "error": float(np.abs(true - surrogate).mean()),
        "spread": float(true.std()),
    }


def measure_world(world: str, seed: int, quick: bool) -> list[dict[str, Any]]:
    w = WORLDS[world]
    config = Experiment.load(w.preset).config({**w.changes, "seed": seed})
    phases = {1: "early", 3: "late"} if quick else {1: "early", 3: "early", w.late: "late", w.late + 2: "late"}
    sizes, rows = ((5, 12) if quick else (SMALL, LARGE)), []
    for t, n, state in states(config, list(phases), sizes):
        orders = 3 if n <= SMALL else 1
        rows.append(
            {
                "world": world,
                "seed": seed,
                "round": t,
                "phase": phases[t],
                "n": n,
                "m": len(state.V),
                "d": state.net.layout.num_floats,
                "found": judge(state, orders, seed),
                "fidelity": fidelity(state, seed),
            }
        )
    return rows


def measure_stress(name: str, seed: int, quick: bool) -> list[dict[str, Any]]:
    stress = STRESSES[name]
    w = WORLDS[stress.world]
    config = Experiment.load(w.preset).config({**w.changes, **stress.changes, "seed": seed})
    n = 4 if quick else stress.n
    return [
        {
            "stress": name,
            "kind": stress.kind,
            "value": stress.value,
            "seed": seed,
            "round": t,
            "n": n,
            "found": judge(state, 2, seed),
            "fidelity": fidelity(state, seed),
        }
        for t, n, state in states(config, (1,) if quick else (1, 6), (n,), stress.training, stress.model)
    ]


def measure_run(world: str, arm: str, seed: int, quick: bool, out: Path) -> list[dict[str, Any]]:
    w = WORLDS[world]
    short = {"rounds": 2, "evaluate.every": 1} if quick else {}
    config = Experiment.load(w.preset).config({**w.changes, **w.runs, **short, **ARMS[arm], "seed": seed})
    own = random_of_that_size if arm == RANDOM else None
    directory = out / "runs" / world / arm / f"seed-{seed}"
    result = filfl.simulate(config, filter=own, out=directory, resume=True, say=lambda text: None)
    filtered = [record for record in result.records if record["did_filter"]]
    return [
        {
            "world": world,
            "arm": arm,
            "seed": seed,
            "rounds": config.rounds,
            "available": len(result.records[0]["available"]),
            "accuracy": result.summary["final_accuracy"],
            "size": _mean(len(record["filtered"]) for record in filtered),
            "evaluations": _mean(record["evaluations"] for record in filtered),
        }
    ]


@dataclass(frozen=True)
class Task:
    kind: str
    name: str
    call: Callable[[], list[dict[str, Any]]]


def tasks(quick: bool, seeds: int, out: Path) -> list[Task]:
    """All tasks, long ones first, so that no core is idle at the end."""
    worlds = ("femnist", "cifar10", "shakespeare", "mnist5k")
    of_states, of_runs = (range(1), range(1)) if quick else (range(seeds), range(2))
    return [
        *(Task("states", f"{w}-{s}", partial(measure_world, w, s, quick)) for s in of_states for w in worlds),
        *(
            Task("runs", f"{w}-{arm}-{s}", partial(measure_run, w, arm, s, quick, out))
            for s in of_runs
            for w in worlds
            for arm in ARMS
        ),
        *(Task("stresses", f"{n}-{s}", partial(measure_stress, n, s, quick)) for s in of_states for n in STRESSES),
    ]


def perform(task: Task, out: Path) -> tuple[list[dict[str, Any]], str]:
    """The rows of a task, from its file if it exists; or the reason why there are none."""
    path = out / "tasks" / f"{task.kind}-{task.name}.json"
    if path.exists():
        return json.loads(path.read_text()), ""
    try:
        with one_thread():
            rows = task.call()
    except FilflError as error:
        return [], str(error)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, json.dumps(rows).encode())
    return rows, ""


def _mean(values: Any) -> float:
    values = list(values)
    return sum(values) / len(values) if values else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a smoke test: everything small, no averages")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds of the states; whole runs use 2")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--out", type=Path, help="folder for the results (default: runs/filter-study)")
    options = parser.parse_args()
    out = options.out or Path("runs") / ("filter-study-quick" if options.quick else "filter-study")
    study: dict[str, Any] = {
        "quick": options.quick,
        "jobs": options.jobs,
        "cores": os.cpu_count(),
        "machine": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}, "
        f"torch {torch.__version__}",
        "verify": VERIFY,
        "racing": {"chunk": CHUNK, "z": CERTAIN},
        "clients": [5, 12] if options.quick else [SMALL, LARGE],
        "titles": {name: world.title for name, world in WORLDS.items()},
        "states": [],
        "runs": [],
        "stresses": [],
        "missing": {},
    }
    todo = tasks(options.quick, options.seeds, out)
    answers: dict[int, list[dict[str, Any]]] = {}
    start = time.perf_counter()
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        pending = {pool.submit(perform, task, out): i for i, task in enumerate(todo)}
        for done, future in enumerate(as_completed(pending), start=1):
            i = pending[future]
            answers[i], reason = future.result()
            if reason:
                study["missing"][todo[i].name] = reason
            clock = time.perf_counter() - start
            print(f"[{done}/{len(todo)}, {clock:.0f} s] {todo[i].kind} {todo[i].name} {reason}", flush=True)
    for i, task in enumerate(todo):
        study[task.kind] += answers[i]
    if options.quick:
        page, picture, numbers = out / "filters.md", out / "filters.png", out / "filter_study.json"
    else:
        page, picture = ROOT / "docs" / "filters.md", ROOT / "docs" / "images" / "filters.png"
        numbers = ROOT / "benchmarks" / "results" / "filter_study.json"
    study["missing"] = sorted({name.split("-")[0] for name in study["missing"]} & WORLDS.keys())
    numbers.parent.mkdir(parents=True, exist_ok=True)
    numbers.write_text(json.dumps(study, indent=1) + "\n")
    write_page(study, page, picture)
    print(f"{page}, {picture}, {numbers}: {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
