"""`filfl.simulate` with every built-in plug-in, every config key and the user's own functions."""

import gzip
import json
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import filfl
from filfl.attacks import ATTACKS
from filfl.config.config import Config
from filfl.config.plugins import KINDS
from filfl.config.schema import options_of
from filfl.data.partition import PARTITIONS
from filfl.errors import PluginError
from filfl.filtering.schedule import WHEN

SHAKESPEARE = {"data.name": "shakespeare", "data.most": 6, "model.name": "lstm", "model.hidden": 4, "model.layers": 1}
BRIEF = {"data.clients": 4, "data.test": 0.02, "filter.size": 8, "training.steps": 1, "training.batch": 4}
"""The smallest possible run, for large networks."""
NEEDED: dict[str, dict[str, Any]] = {
    "redraw": {"availability.n": 8},
    **{name: {"attack.share": 0.3} for name in ATTACKS if name != "none"},
    "femnist": {"data.clients": 6},
    "shakespeare": SHAKESPEARE,
    "lstm": SHAKESPEARE,
    "cifar10": {"data.filtering": 0.1},
    "hub": {"data.dataset": "made", "data.client": "who", "data.clients": 6},
    "table": {"data.path": "table.csv", "data.client": "who", "data.target": "kind"},
    "images": {"data.path": "images"},
    "saved": {"data.path": "saved"},
    "ridge": {"model.name": "linear"},
    "linear": {"data.name": "ridge"},
    "leaf-cnn": BRIEF,
    "resnet18": BRIEF,
    "small-resnet": BRIEF,
}
OWN_DATA = {"arrays", "table", "images", "saved"}
"""Datasets whose clients are those of the source."""
NUMBERS = {"ridge", "linear"}
"""Plug-ins with numeric targets: their runs have no accuracy."""
OWN: dict[str, Any] = {
    "model": lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10)),
    "selection": lambda pool, k, ask, rng: pool[:k],
    "filter": lambda clients, reward, rng: filfl.Filtering(kept=tuple(clients[::2])),
}


NAMES = [
    *((section, name) for section in KINDS for name in KINDS[section].registry),
    *(("data.partition", name) for name in PARTITIONS),
    *(("filter.when", name) for name in WHEN),
]


ONLY_ON_FLOWER = [("availability", "connected"), ("aggregation", "flower")]


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small files for the datasets that need some, at their default locations."""
    monkeypatch.setenv("FILFL_DATA", str(tmp_path))
    monkeypatch.setenv("FILFL_CACHE", str(tmp_path / "cache"))
    with gzip.open(tmp_path / "shakespeare_roles.jsonl.gz", "wt", encoding="utf-8") as file:
        for k in range(12):
            print(json.dumps({"play": "a", "role": str(k), "n": k, "text": f"I am number {k}. " * 150}), file=file)
    rng, n = np.random.default_rng(0), np.arange(240)
    images = rng.integers(256, size=(240, 28, 28), dtype=np.uint8)
    characters = {"images": images, "labels": n % 62, "writers": n % 6, "split": n % 5 == 0}
    np.savez(tmp_path / "femnist_leaf_writers.npz", **characters)
    images = rng.integers(256, size=(240, 32, 32, 3), dtype=np.uint8)
    things = {"x_train": images[:200], "y_train": n[:200] % 10, "x_test": images[200:], "y_test": n[200:] % 10}
    np.savez(tmp_path / "cifar10_subset_10k_2k.npz", **things)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "made").mkdir()
    columns = {"features": rng.normal(size=(240, 4)).tolist(), "label": (n % 3).tolist(), "who": (n % 8).tolist()}
    datasets.Dataset.from_dict(columns).to_parquet(tmp_path / "made" / "train.parquet")


def write_own(name: str) -> None:
    """The source of a dataset of one's own, in the current folder."""
    if name == "table":
        rows = [f"{i % 6},{i / 7},{'ab'[i % 2]}" for i in range(240)]
        Path("table.csv").write_text("\n".join(["who,size,kind", *rows]))
    elif name == "images":
        for i in range(80):
            path = Path("images", str(i % 4), str(i % 3), f"{i}.png")
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.full((4, 4), i, dtype=np.uint8)).save(path)
    elif name == "saved":
        n = np.arange(240)
        filfl.FederatedData.from_arrays(n[:, None] / 7, n % 10, n % 6).save("saved")


@pytest.mark.filterwarnings(
    "ignore::UserWarning", "ignore::ResourceWarning"
)  # raised by flwr-datasets and its dependencies
@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(("section", "name"), NAMES, ids=lambda part: part)
def test_every_name_in_filfl_list_runs_a_round(section: str, name: str, blobs: filfl.FederatedData) -> None:
    key = section if "." in section else f"{section}.name"
    config = {"rounds": 2, "selection.k": 2, **({} if name in OWN_DATA else {"data.clients": 12})}
    config |= {key: name, **NEEDED.get(name, {})}
    write_own(name)
    given = {"data": blobs} if name == "arrays" else {section: OWN[section]} if name == "own" else {}
    result = filfl.simulate(config, **given)
    assert len(result.records) == 2
    assert all(a is None if name in NUMBERS else 0 <= a <= 1 for a in result.accuracy)
    assert all(record["selected"] for record in result.records)


@pytest.mark.parametrize(("section", "name"), ONLY_ON_FLOWER)
def test_plugins_that_exist_only_on_flower_are_refused(section: str, name: str, tmp_path: Path) -> None:
    with pytest.raises(filfl.FilflError, match=f'{section}.name = "{name}" exists only on Flower'):
        filfl.simulate({f"{section}.name": name}, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_many_options_in_one_run() -> None:
    result = filfl.simulate(
        {
            "rounds": 3,
            "data.clients": 15,
            "data.noisy": 0.2,
            "data.partition": "shards",
            "availability.name": "diurnal",
            "filter.name": "rgf",
            "filter.when": "figure-2",
            "filter.cap": 6,
            "filter.empty": "global",
            "selection.name": "power-of-choice",
            "selection.k": 3,
            "selection.d": 4,
            "algorithm.name": "fedprox",
            "aggregation.name": "by-examples",
            "training.steps": 3,
            "training.schedule": "step",
            "training.factor": 0.9,
            "training.every": 2,
            "training.momentum": 0.9,
            "training.weight_decay": 0.001,
            "evaluate.every": 2,
        }
    )
    assert [a is not None for a in result.accuracy] == [False, True, True], (
        "every second round and the last round are tested"
    )


BASE = {
    "rounds": 3,
    "data.clients": 12,
    "model.hidden": [8],
    "availability.name": "redraw",
    "availability.n": 8,
    "availability.every": 2,
    "filter.period": 9,
    "selection.k": 3,
}
EVERY_KEY = {
    "seed": 1,
    "data.clients": 14,
    "data.partition": "iid",
    "data.alpha": 5.0,
    "data.min_size": 50,
    "data.noisy": 0.5,
    "data.test": 0.3,
    "data.filtering": 0.2,
    "data.validation": 0.3,
    "model.hidden": [9],
    "availability.n": 7,
    "availability.every": 1,
    "filter.values": "leave-one-out",
    "filter.honest_gain": False,
    "data.wrong_labels": "permuted",
    "filter.name": "rgf",
    "filter.reward": "ensemble",
    "filter.verify": 1,
    "filter.transport": "logits",
    "filter.precision": "int8",
    "filter.part": 5,
    "filter.top": 2,
    "filter.size": 9,
    "filter.period": 1,
    "filter.cap": 5,
    "filter.when": "figure-2",
    "filter.empty": "zero",
    "filter.least": 7,
    "filter.optimum": True,
    "filter.data": "variable",
    "selection.name": "power-of-choice",
    "selection.k": 4,
    "algorithm.name": "fedprox",
    "training.epochs": 2,
    "training.steps": 1,
    "training.batch": 8,
    "training.lr": 0.2,
    "training.momentum": 0.5,
    "training.weight_decay": 0.1,
    "aggregation.name": "by-examples",
    "attack.name": "sign-flip",
    "evaluate.every": 2,
    "rounds": 4,
    "data.shards": 3,
    "training.factor": 0.4,
    "training.every": 2,
    "training.beta": 0.5,
    "training.milestones": [1, 2],
    "filter.fixed": True,
    "selection.every": 2,
    "evaluate.train_samples": 10,
    "selection.sum": "largest",
    "availability.mean": 0.9,
    "availability.amplitude": 0.1,
    "availability.period": 3,
    "availability.sigma": 2.0,
    "selection.d": 4,
    "selection.of": "updates",
    "algorithm.mu": 2.0,
    "attack.share": 0.9,
    "attack.factor": 3.0,
}
STEP = {"training.schedule": "step", "training.factor": 0.5, "training.every": 1}
CHANGED_WITH: dict[str, dict[str, Any]] = {
    "data.shards": {"data.partition": "shards"},
    "training.factor": STEP,
    "training.every": STEP,
    "training.beta": {"training.schedule": "inverse", "training.beta": 0.1},
    "training.milestones": {
        "training.schedule": "milestones",
        "training.factor": 0.5,
        "training.milestones": [2],
    },
    "filter.fixed": {"filter.size": 20},
    "selection.every": {"availability.n": 12, "filter.name": "none"},
    **{f"availability.{option}": {"availability.name": "diurnal"} for option in ("mean", "amplitude", "period")},
    "availability.sigma": {"availability.name": "lognormal"},
    "selection.d": {"selection.name": "power-of-choice", "selection.k": 3},
    "selection.of": {"selection.name": "divfl", "filter.name": "keep-all"},
    "selection.sum": {"selection.name": "divfl", "filter.name": "keep-all"},
    "algorithm.mu": {"algorithm.name": "fedprox", "algorithm.mu": 1.0},
    "attack.share": {"attack.name": "sign-flip", "attack.share": 0.5},
    "attack.factor": {"attack.name": "scaled", "attack.share": 0.5},
    "filter.when": {"filter.period": 3},
    "algorithm.name": {"algorithm.mu": 1.0},
    "attack.name": {"attack.share": 0.5},
    "data.min_size": {"data.alpha": 0.1},
    "data.wrong_labels": {"data.noisy": 0.5},
    "filter.empty": {"filter.period": 1},
    "filter.verify": {"filter.reward": "ensemble"},
    "filter.transport": {"filter.reward": "ensemble"},
    **{
        f"filter.{option}": {"filter.reward": "ensemble", "filter.transport": "logits"}
        for option in ("precision", "part", "top")
    },
}


NOT_IN_RECORDS = {"name", "checkpoint.every", "checkpoint.keep", "execution.device", "execution.memory"}
NOT_IN_RECORDS |= {"execution.mode", "execution.workers", "execution.deterministic", "execution.tf32"}
"""Keys that do not change the records of a run."""
TESTED_ELSEWHERE = {
    *("data.name", "model.name", "availability.name", "training.schedule"),  # in other tests of this file
    *("filter.path", "data.path", "data.classes", "data.image", "data.most", "data.min_chars", "data.text"),
    "data.spread",
    *("data.beta", "data.iid", "data.features", "data.samples", "data.heterogeneity", "data.noise"),
    *("data.dataset", "data.subset", "data.client", "data.partitioner", "data.arguments", "data.input", "data.target"),
    *("data.split", "data.test_split"),  # in the tests of each dataset
    *("data.client", "data.target", "data.task", "data.missing", "data.standardise", "data.size", "data.client_table"),
    "data.inverted",  # in the tests of FEMNIST
    "data.trusted",  # in test_trusted.py
    *("evaluate.metrics", "evaluate.primary", "evaluate.better"),  # in test_metrics.py
    *("training.optimizer", "training.options", "training.clip", "training.augment"),  # in test_optimizers.py
    *("model.layers", "model.embedding", "model.tokens", "model.channels", "model.width", "model.blocks"),
    "filter.screen",  # in test_screen.py
    *(f"aggregation.{option}" for option in ("bad", "before", "steps", "smoothing", "norm", "radius")),
    # in test_robust_means.py
    "aggregation.rho",  # in test_server_data.py
    *(f"aggregation.{option}" for option in ("eta", "momentum", "beta_1", "beta_2", "tau", "of")),
    # in test_server_optimizers.py
    *("guard.norm", "guard.examples", "guard.answers", "guard.stop_after"),  # in test_guard.py and test_hostile.py
    *("attack.std", "attack.z"),  # in test_collusion.py
    *("attack.optimal", "attack.target", "attack.patch", "attack.poisoned_share"),  # in test_poison.py
    "filter.classes",  # in test_data.py
    "execution.precision",  # in the laws of half precision
    "filter.restarts",  # in the laws of the local search
    *("filter.evidence", "filter.outlier", "filter.memory", "filter.floor"),  # in the laws of pruning
}


@pytest.mark.parametrize("key", EVERY_KEY)
def test_every_key_changes_the_records(key: str) -> None:
    # The options of a plug-in come with its name, and replace those of another plug-in.
    section, changes = key.partition(".")[0], CHANGED_WITH.get(key, {})
    others = f"{section}." if f"{section}.name" in changes else "nothing"
    base = {name: value for name, value in BASE.items() if not name.startswith(others)}
    base |= {} if key.endswith(".name") else changes
    plain = filfl.simulate(base).records
    changed = filfl.simulate({**base, **CHANGED_WITH.get(key, {}), key: EVERY_KEY[key]}).records
    assert plain != changed


@pytest.mark.parametrize(
    "schedule",
    [
        {"training.schedule": "step", "training.factor": 0.5, "training.every": 2},
        {"training.schedule": "inverse", "training.beta": 0.1},
    ],
)
def test_a_schedule_changes_the_step_size_after_the_first_round(schedule: dict[str, Any]) -> None:
    plain, scheduled = filfl.simulate(BASE), filfl.simulate({**BASE, **schedule})
    assert plain.records[0] == scheduled.records[0]
    assert plain.records[1]["test_loss"] != scheduled.records[1]["test_loss"]


def test_every_key_is_covered_by_a_test() -> None:
    keys = set()
    for section in fields(config := Config()):
        options = getattr(config, section.name)
        keys |= (
            {f"{section.name}.{name}" for name in options_of(type(options))}
            if is_dataclass(options)
            else {section.name}
        )
    for section_name, kind in KINDS.items():
        keys |= {f"{section_name}.{name}" for plugin in kind.registry.values() for name in options_of(plugin)}
        keys.add(f"{section_name}.name")
    assert {"filter.cap", "filter.path", "selection.d"} <= keys, "keys that are None by default are included"
    assert keys == EVERY_KEY.keys() | NOT_IN_RECORDS | TESTED_ELSEWHERE


def test_federated_and_variable_filtering_need_no_server_data(blobs: filfl.FederatedData) -> None:
    from dataclasses import replace

    empty = replace(blobs, filter_x=blobs.filter_x[:0], filter_y=blobs.filter_y[:0])
    for data in ("federated", "variable"):
        result = filfl.simulate({"rounds": 2, "selection.k": 2, "filter.data": data}, empty)
        assert result.records[0]["judges"] and result.records[0]["reward_all"] > 5
        assert result.summary["final_accuracy"] > 0.5


def test_losses_use_validation_data_if_available() -> None:
    from filfl.algorithms.fedavg import FedAvg
    from filfl.config.sections import Training
    from filfl.core.queries import LossQuery
    from filfl.evaluation import cross_entropy, mean_loss
    from filfl.simulation.executors.serial import LocalTraining, SerialClients
    from filfl.weights import FlatModel

    rng = np.random.default_rng(0)
    data = filfl.FederatedData.from_arrays(
        rng.normal(size=(24, 4)), rng.integers(3, size=24), [0] * 20 + [1] * 4, validation=0.2
    )
    model = FlatModel(nn.Linear(4, 3), torch.device("cpu"))
    clients = SerialClients(data, model, cross_entropy, LocalTraining(0, FedAvg(), Training()))
    assert data.offsets[2] == data.train_ends[1], "client 1 has too few samples for a validation split"
    for k, (start, stop) in {0: (data.train_ends[0], data.offsets[1]), 1: (data.offsets[1], data.offsets[2])}.items():
        part = clients.samples.part(start, stop)
        expected = mean_loss(model, model.weights(), part, cross_entropy)
        assert clients.query(LossQuery("validation"), [k], model.weights())[k] == expected


def test_dropout_differs_between_clients_and_rounds() -> None:
    from filfl.algorithms.fedavg import FedAvg
    from filfl.config.sections import Training
    from filfl.evaluation import cross_entropy
    from filfl.simulation.executors.serial import LocalTraining, SerialClients
    from filfl.weights import FlatModel

    # All samples are equal, so that their order does not matter: only dropout can cause a difference.
    x = np.ones((16, 6))
    data = filfl.FederatedData.from_arrays(
        x, np.zeros(16, dtype=int), np.repeat([0, 1], 8), test=(x[:1], [1]), filtering=0.0, validation=0.0
    )
    model = FlatModel(nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 2)), torch.device("cpu"))
    start = model.weights()
    training = LocalTraining(0, FedAvg(), Training(epochs=1, batch=8, lr=0.1))
    clients = SerialClients(data, model, cross_entropy, training)

    def trained(k: int, t: int) -> torch.Tensor:
        return clients.train(t, [k], start)[k].weights.vector

    assert torch.equal(trained(0, 1), trained(0, 1))
    assert not torch.allclose(trained(0, 1), trained(1, 1))
    assert not torch.allclose(trained(0, 1), trained(0, 2))


def test_filtering_removes_noisy_clients() -> None:
    """With a third of noisy clients, power-of-choice without a filter hardly learns."""
    base = {
        "rounds": 15,
        "data.clients": 30,
        "data.noisy": 0.33,
        "training.epochs": 4,
        "selection.k": 3,
        "selection.name": "power-of-choice",
    }
    without = filfl.simulate({**base, "filter.name": "none"})
    dgf = filfl.simulate({**base, "filter.name": "dgf"})
    assert dgf.summary["final_accuracy"] > without.summary["final_accuracy"] + 0.2


def test_own_loss_and_metrics_and_callbacks() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 3)).astype(np.float32)
    y = x @ np.array([1.0, -2.0, 0.5], dtype=np.float32)
    data = filfl.FederatedData.from_arrays(x, y, np.arange(200) % 10)
    seen = []
    result = filfl.simulate(
        {"rounds": 8, "selection.k": 3, "training.epochs": 5},
        data=data,
        model=lambda: nn.Sequential(nn.Linear(3, 1), nn.Flatten(0)),
        loss=nn.functional.mse_loss,
        metrics={"mae": lambda out, target: float((out - target).abs().mean())},
        callbacks=[lambda record, state: seen.append((record["round"], state.w.vector.numel()))],
    )
    assert [t for t, _ in seen] == list(range(1, 9)) and seen[0][1] == 4
    assert result.records[-1]["metrics"]["mae"] < 0.1 < result.records[0]["metrics"]["mae"]
    assert result.accuracy == [None] * 8
    assert result.summary["final_accuracy"] is None
    assert torch.allclose(result.model[0].weight.detach(), torch.tensor([[1.0, -2.0, 0.5]]), atol=0.1)


def test_own_selection_can_query_clients(blobs: filfl.FederatedData) -> None:
    def lowest_losses(pool: Sequence[int], k: int, ask: Any, rng: np.random.Generator) -> list[int]:
        losses, sizes = ask.losses(pool), ask.num_examples(pool)
        assert sizes.tolist() == blobs.num_train[pool].tolist()
        return sorted(losses, key=losses.__getitem__)[:k]

    result = filfl.simulate({"rounds": 2, "selection.k": 2}, data=blobs, selection=lowest_losses)
    assert all(len(record["selected"]) == 2 for record in result.records)


class RaisesOnLargeInputs(nn.Module):
    """Raises in training if feature 2 of a batch has a mean above 1."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and x[:, 2].mean() > 1.0:
            raise ValueError("input too large")
        return self.linear(x)


def test_a_client_whose_training_raises_does_not_affect_others() -> None:
    rng = np.random.default_rng(0)
    owners = np.arange(300) % 10
    x = rng.normal(size=(300, 4)).astype(np.float32)
    x[owners == 3, 2] += 5
    data = filfl.FederatedData.from_arrays(x, rng.integers(3, size=300), owners)
    result = filfl.simulate(
        {"rounds": 2, "filter.name": "keep-all", "selection.k": 10}, data=data, model=RaisesOnLargeInputs
    )
    assert result.records[0]["refused"] == {"3": "training raised ValueError: input too large"}
    assert 3 not in result.records[0]["filtered"] and len(result.records[0]["filtered"]) == 9


def test_a_client_that_diverges_is_refused(blobs: filfl.FederatedData) -> None:
    result = filfl.simulate({"rounds": 1, "training.lr": 1e30, "training.epochs": 50, "selection.k": 9}, data=blobs)
    assert len(result.records[0]["refused"]) == 9
    assert result.records[0]["notes"] == ["every update was refused; the model is unchanged"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"model": lambda: nn.Linear(99, 3)}, "does not fit the data"),
        ({"model": lambda: "no module"}, "must be a function that makes an nn.Module"),
        ({"model": nn.Linear(4, 3)}, "must be a function that makes a new module"),
        ({"model": lambda: nn.Linear(10**13, 3)}, "the model cannot be built"),
        ({"model": nn.Identity}, "the model has no parameter with requires_grad = True"),
        ({"metrics": {"odd": lambda out, y: 1 / 0}}, "does not fit the data .*ZeroDivisionError"),
        ({"loss": lambda out, y: out}, "does not fit the data"),
    ],
)
def test_functions_that_do_not_fit_raise_before_the_first_round(
    given: dict[str, Any], message: str, blobs: filfl.FederatedData
) -> None:
    with pytest.raises(PluginError, match=message):
        filfl.simulate({"selection.k": 2}, data=blobs, **given)


def test_a_run_warns_once_if_every_update_is_refused(blobs: filfl.FederatedData) -> None:
    messages: list[str] = []
    filfl.simulate(
        {"rounds": 2, "selection.k": 2, "filter.name": "none"},
        blobs,
        loss=lambda out, y: out.detach().mean(),
        say=messages.append,
    )
    assert len(messages) == 1 and "round 1: every update was refused; client" in messages[0] and "grad" in messages[0]


def test_a_float64_model_gets_float64_inputs(blobs: filfl.FederatedData) -> None:
    result = filfl.simulate({"rounds": 2, "selection.k": 2}, blobs, lambda: nn.Linear(4, 3).double())
    assert result.model.weight.dtype == torch.float64 and not result.records[0]["refused"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"config": None}, "config must be"),
        ({"config": {3: 4}}, "config must be"),
        ({"config": {}, "data": ([[1.0]], [0])}, "data must be FederatedData"),
        ({"config": {}, "resume": True}, "resume needs out"),
    ],
)
def test_invalid_arguments_raise(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(filfl.FilflError, match=message):
        filfl.simulate(**arguments)


def test_a_callback_cannot_change_the_records(blobs: filfl.FederatedData) -> None:
    result = filfl.simulate({"rounds": 2, "selection.k": 2}, blobs, callbacks=[lambda record, state: record.clear()])
    assert result.summary["rounds"] == 2 and result.records[0]["selected"]


def test_batchnorm_statistics_are_averaged(blobs: filfl.FederatedData) -> None:
    result = filfl.simulate(
        {"rounds": 2, "selection.k": 3}, data=blobs, model=lambda: nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3))
    )
    state = result.model.state_dict()
    assert state["0.running_mean"].abs().sum() > 0
    assert state["0.num_batches_tracked"].dtype == torch.int64 and state["0.num_batches_tracked"] > 0


def test_uint8_images_become_float32_in_the_batch() -> None:
    x = np.full((40, 1, 2, 2), 255, dtype=np.uint8)
    data = filfl.FederatedData.from_arrays(x, np.arange(40) % 2, np.arange(40) % 4, filtering=0.2)
    seen: list[tuple[torch.dtype, float]] = []

    class RecordsInputs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append((x.dtype, float(x.max())))
            return self.linear(x.flatten(1))

    filfl.simulate({"rounds": 1, "selection.k": 2}, data=data, model=RecordsInputs)
    assert set(seen) == {(torch.float32, 1.0)}


def test_numeric_targets_are_fitted_by_least_squares() -> None:
    from filfl.data.ridge import Ridge, least_squares

    config = {"rounds": 30, "data.name": "ridge", "data.clients": 6, "data.heterogeneity": 0.0, "data.noise": 0.0}
    config |= {"model.name": "linear", "filter.name": "none", "selection.k": 6, "training.lr": 0.05}
    result = filfl.simulate(config)
    data = Ridge(clients=6, heterogeneity=0.0, noise=0.0).load(0)
    w = torch.cat([p.detach().flatten() for p in result.model.parameters()]).numpy()
    assert np.allclose(w, least_squares(data, 0.0).optimum, atol=0.02)
