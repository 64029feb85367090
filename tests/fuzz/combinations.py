"""Combinations of plug-ins: short runs. A run that is killed after a round and resumed has the same bytes."""

import random
import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import filfl
from filfl.config.config import Config
from filfl.config.plugins import KINDS
from filfl.errors import FilflError

from .campaign import Part, Wrong, sentence

SMALL: dict[str, Any] = {
    "rounds": 3,
    "data.clients": 8,
    "filter.size": 30,
    "filter.period": 2,
    "selection.k": 3,
    "model.hidden": [6],
    "execution.workers": 2,
}
CHOICES: dict[str, tuple[Any, ...]] = {
    "filter.reward": ("average", "ensemble"),
    "filter.transport": ("models", "logits"),
    "filter.precision": ("float32", "float16", "int8"),
    "filter.data": ("server", "variable", "federated"),
    "filter.empty": ("zero", "global"),
    "filter.when": ("algorithm-1", "figure-2"),
    "filter.values": ("one-of-k", "leave-one-out", "banzhaf", "shapley", "alone", "none"),
    "filter.verify": (0, 2),
    "filter.cap": (3, 5),
    "filter.least": (1, 4),
    "filter.top": (2,),
    "filter.part": (7,),
    "data.noisy": (0.0, 0.5, 1.0),
    "data.wrong_labels": ("random", "permuted"),
    "data.partition": ("iid", "dirichlet", "shards"),
    "data.validation": (0.0, 0.3),
    "training.optimizer": ("SGD", "Adam", "LBFGS", "Rprop"),
    "training.lr": (1e-30, 0.1, 1e6, 1e300),
    "training.clip": (1e-300, 1.0),
    "training.momentum": (0.0, 0.9),
    "training.batch": (1, 10**9),
    "execution.mode": ("auto", "serial", "vectorized"),
    "execution.memory": (1e-9, 1.0),
    "evaluate.every": (1, 2, 100),
    "checkpoint.every": (1, 2),
    "availability.sigma": (0.0, 300.0),
    "availability.n": (1, 4, 8),
    "attack.share": (0.3, 1.0),
    "attack.factor": (1e-300, 10.0, 1e300),
    "algorithm.mu": (0.0, 1e300),
}
PLUGINS = ("availability", "filter", "selection", "algorithm", "aggregation", "attack")


class Killed(Exception):
    """Stands for the end of the process between two rounds."""


class Combinations(Part):
    name = "combinations"

    def case(self, rng: random.Random) -> None:
        config = drawn(rng)
        while isinstance(sentence(partial(check, config)), FilflError):
            config = drawn(rng)
        whole, resumed = self.folder / "whole", self.folder / "resumed"
        try:
            if not isinstance(sentence(lambda: run(config, whole)), filfl.Result):
                return
            at = rng.randint(1, 3)

            def kill(record: Mapping[str, Any], state: object) -> None:
                if record["round"] == at:
                    raise Killed

            try:
                run(config, resumed, callbacks=[kill])
            except Killed:
                run(config, resumed, resume=True)
            for name in ("rounds.jsonl", "model.safetensors", "clients.csv"):
                if (whole / name).read_bytes() != (resumed / name).read_bytes():
                    raise Wrong(f"{name} differs after a kill in round {at} and a resume: {config}")
        except Exception as error:
            error.add_note(f"config: {config}")
            raise
        finally:
            for folder in (whole, resumed):
                shutil.rmtree(folder, ignore_errors=True)


def drawn(rng: random.Random) -> dict[str, Any]:
    """A random config, which may be refused: its options may contradict each other."""
    config = {**SMALL, "seed": rng.randrange(3)}
    for section in PLUGINS:
        config[f"{section}.name"] = rng.choice(sorted(KINDS[section].registry))
    options = {key: rng.choice(CHOICES[key]) for key in rng.sample(sorted(CHOICES), k=rng.randrange(6))}
    return config | options | ({"availability.n": 4} if config["availability.name"] == "redraw" else {})


def check(config: Mapping[str, Any]) -> None:
    Config.read(config).with_own().require_objects()


def run(config: Mapping[str, Any], out: Path, **options: Any) -> filfl.Result:
    return filfl.simulate(config, out=out, progress=False, say=lambda text: None, **options)
