"""`--scale paper`, key by key against Appendix C of the paper."""

from typing import Any

import pytest

from filfl.comparison.figures import paper_names
from filfl.config.config import Config, dotted_keys
from filfl.config.experiment import Experiment

CIFAR10: dict[str, tuple[Any, str]] = {
    "data.name": ("cifar10", "C.1: CIFAR-10"),
    "data.filtering": (0.01, "C.1: the server partition fraction is 0.01"),
    "data.validation": (0.1, "C.1: train (0.9) and validation (0.1)"),
    "data.partition": ("dirichlet", "C.1: the Dirichlet distribution"),
    "data.alpha": (0.5, "C.1: alpha = 0.5"),
    "data.clients": (200, "C.1: N = 200"),
    "model.name": ("resnet18", "C.1: ResNet18"),
    "training.epochs": (5, "C.1: E = 5"),
    "training.steps": (None, "C.1: epochs, not steps"),
    "rounds": (500, "C.1: T = 500"),
    "availability.name": ("redraw", "C.1: a time-varying set of available clients"),
    "availability.n": (100, "C.1: n = 100 (power-of-choice)"),
    "availability.every": (5, "C.1: randomly selected every 5 rounds"),
    "filter.period": (5, "C.1: h = 5"),
    "filter.size": (None, "C.1: the whole server partition"),
    "filter.data": ("server", "C.1: the server dataset is used by the filtering algorithm"),
    "filter.empty": ("zero", "Eq. (3): R of the empty set"),
    "selection.k": (10, "C.1: C = 0.1, K = 10 for n = 100"),
    "training.batch": (16, "C.1: the batch size is 16"),
    "training.weight_decay": (1e-3, "C.1: the weight decay is 1e-3"),
    "training.lr": (0.1, "C.1: the learning rate is 0.1"),
    "training.schedule": ("step", "C.1: with a decaying factor"),
    "training.factor": (0.998, "C.1: a decaying factor of 0.998"),
    "training.every": (10, "C.1: every 10 rounds"),
    "training.momentum": (0.0, "not mentioned"),
    "algorithm.name": ("fedavg", "C.1: FedAvg"),
    "aggregation.name": ("mean", "Algorithm 1, line 19"),
}
FEMNIST: dict[str, tuple[Any, str]] = {
    "data.name": ("femnist", "C.2: FEMNIST"),
    "data.clients": (190, "C.2: 190 clients"),
    "data.validation": (0.2, "C.2: validation data (0.2)"),
    "data.filtering": (0.05, "C.2: server data (0.05)"),
    "data.inverted": (False, "C.2: LEAF's images"),
    "model.name": ("leaf-cnn", "C.2: two convolutional layers, a dense layer with 2048 units"),
    "training.epochs": (2, "C.2: E = 2"),
    "training.steps": (None, "C.2: epochs, not steps"),
    "rounds": (500, "C.2: T = 500"),
    "availability.name": ("redraw", "C.2: a time-varying set of available clients"),
    "availability.n": (50, "C.2: n = 50"),
    "availability.every": (5, "C.2: every 5 rounds"),
    "filter.period": (5, "C.2: h = 5"),
    "filter.size": (None, "C.2: all the server datasets; E.5: 2000"),
    "filter.data": ("server", "C.2: a global server dataset"),
    "filter.empty": ("zero", "Eq. (3): R of the empty set"),
    "selection.k": (5, "C.2: C = 0.1, K = 5"),
    "training.batch": (50, "C.2: the batch size is 50"),
    "training.lr": (0.003, "C.2: the learning rate is 0.003"),
    "training.schedule": ("constant", "C.2: no decay is mentioned"),
    "training.weight_decay": (0.0, "not mentioned"),
    "training.momentum": (0.0, "not mentioned"),
    "algorithm.name": ("fedavg", "C.2: FedAvg"),
    "aggregation.name": ("mean", "Algorithm 1, line 19"),
}
SHAKESPEARE: dict[str, tuple[Any, str]] = {
    "data.name": ("shakespeare", "C.3: Shakespeare"),
    "data.clients": (143, "C.3: 143 clients"),
    "data.validation": (0.2, "C.3: validation data (0.2)"),
    "model.name": ("lstm", "C.3: LSTM"),
    "model.layers": (2, "C.3: two-layer LSTM"),
    "model.hidden": (256, "C.3: 256 hidden units"),
    "model.embedding": (8, "C.3: an 8D embedding layer"),
    "training.epochs": (1, "C.3: E = 1"),
    "training.steps": (None, "C.3: epochs, not steps"),
    "rounds": (250, "C.3: T = 250"),
    "availability.name": ("redraw", "C.3: a time-varying set of available clients"),
    "availability.n": (100, "C.3: n = 100"),
    "availability.every": (5, "C.3: every 5 rounds"),
    "filter.period": (5, "C.3: h = 5"),
    "filter.size": (34, "C.3, Table 3: 34 data points"),
    "filter.fixed": (True, "C.3, Table 3: one text"),
    "filter.data": ("server", "C.3: the server dataset"),
    "filter.empty": ("zero", "Eq. (3): R of the empty set"),
    "selection.k": (10, "C.3: C = 0.1, K = 10"),
    "training.batch": (64, "C.3: the batch size is 64"),
    "training.lr": (0.8, "C.3: the learning rate is 0.8"),
    "training.schedule": ("constant", "C.3: no decay is mentioned"),
    "training.weight_decay": (0.0, "not mentioned"),
    "training.momentum": (0.0, "not mentioned"),
    "algorithm.name": ("fedavg", "C.3: FedAvg"),
    "aggregation.name": ("mean", "Algorithm 1, line 19"),
}
SMALL_CIFAR10 = {
    **CIFAR10,
    "availability.n": (30, "C.1: n = 30"),
    "selection.k": (3, "C.1: C = 0.1"),
}
TABLES: dict[str, dict[str, tuple[Any, str]]] = {
    "poc-cifar10": CIFAR10,
    "variable-filter-cifar10": {**CIFAR10, "filter.data": ("variable", "E.6: a random client's validation dataset")},
    "rs-vs-divfl-cifar10": SMALL_CIFAR10,
    "divfl-cifar10": SMALL_CIFAR10,
    "approximation-cifar10": {
        **CIFAR10,
        "availability.n": (10, "C.1: n = 10 (behavior of the filters)"),
        "selection.k": (1, "C.1: C = 0.1"),
        "filter.period": (1, "C.1: h = 1 (behavior of the filters)"),
    },
    "poc-femnist": FEMNIST,
    "period-femnist": FEMNIST,
    "filter-size-femnist": FEMNIST,
    "fedprox-femnist": {
        **FEMNIST,
        "algorithm.name": ("fedprox", "Fig. 4"),
        "algorithm.mu": (1.0, "not in the paper; the FedProx paper and the authors' code"),
    },
    "poc-shakespeare": SHAKESPEARE,
    "filter-size-shakespeare": SHAKESPEARE,
    "fedprox-shakespeare": {
        **SHAKESPEARE,
        "algorithm.name": ("fedprox", "Fig. 5"),
        "algorithm.mu": (0.001, "not in the paper; the FedProx paper and the authors' code"),
    },
}
"""What the base of each figure must have at the scale of the paper, and where the paper says it."""
ARMS: dict[tuple[str, str], dict[str, tuple[Any, str]]] = {
    ("period-femnist", "h-1"): {"filter.period": (1, "C.2: h = 1")},
    ("period-femnist", "h-3"): {"filter.period": (3, "C.2: h = 3")},
    ("period-femnist", "h-10"): {
        "filter.period": (10, "C.2: h = 10"),
        "availability.every": (20, "C.2: every 20 rounds"),
    },
    ("period-femnist", "h-20"): {
        "filter.period": (20, "C.2: h = 20"),
        "availability.every": (20, "C.2: every 20 rounds"),
    },
    ("period-femnist", "none-20"): {"availability.every": (20, "C.2: every 20 rounds")},
    ("filter-size-femnist", "m-half"): {"filter.size": (1000, "E.5: 1000 samples")},
    ("filter-size-femnist", "m-quarter"): {"filter.size": (500, "E.5: 500 samples")},
    ("filter-size-shakespeare", "m-17"): {"filter.size": (17, "E.5: 17 samples")},
    ("filter-size-shakespeare", "m-8"): {"filter.size": (8, "E.5: 8 samples")},
    ("variable-filter-cifar10", "none"): {"filter.data": ("server", "no filter")},
}
"""What single arms change, and where the paper says it."""
EXTRA = ("-momentum", "divfl-5", "divfl-5-largest", "dgf-milestones")
"""The ends of the names of arms that are not in the paper and change the training or the selection."""


def flat(config: Config) -> dict[str, Any]:
    table: dict[str, Any] = dotted_keys(config.table())
    return table


@pytest.mark.parametrize("name", TABLES)
def test_paper_scale_equals_appendix_c(name: str) -> None:
    paper = Experiment.load(name).at_scale("paper")
    checked = [arm for arm in paper.checked_arms() if not arm.name.endswith(EXTRA)]
    assert len(checked) >= 2
    for arm in checked:
        found = flat(paper.config({}, arm))
        for key, (value, where) in {**TABLES[name], **ARMS.get((name, arm.name), {})}.items():
            assert found.get(key) == value, f"{name}, {arm.name}: {key} ({where})"


def test_every_figure_with_an_experiment_in_the_paper_is_checked() -> None:
    """filtering-rates has the runs of other figures, and convergence is our experiment on Section 4."""
    assert set(TABLES) == set(paper_names()) - {"filtering-rates", "convergence"}
    for name, arm in ARMS:
        assert arm in {each.name for each in Experiment.load(name).at_scale("paper").arms}
