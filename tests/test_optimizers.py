"""Local training with any optimiser of torch.optim, with clipped gradients and with augmented batches."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import filfl
from filfl.algorithms import Algorithm
from filfl.algorithms.fedavg import FedAvg
from filfl.algorithms.fedprox import FedProx
from filfl.algorithms.local_sgd import batches
from filfl.algorithms.optimizers import OPTIMIZERS
from filfl.config.config import Config, override
from filfl.config.experiment import parse_arm
from filfl.config.sections import Training
from filfl.errors import ConfigError, PluginError
from filfl.evaluation import Augment, cross_entropy
from filfl.rng import stream
from filfl.simulation.build import make_parts
from filfl.simulation.executors.open import choose, open_clients
from filfl.simulation.executors.serial import LocalTraining, SerialClients
from filfl.simulation.executors.vectorized import VectorizedClients, why_not_batched
from filfl.weights import FlatModel

CPU = torch.device("cpu")


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


def flip(x: Tensor, rng: np.random.Generator) -> Tensor:
    """Change the sign of about half of the samples, with noise from torch's own generator."""
    signs = torch.from_numpy(rng.choice([-1.0, 1.0], size=len(x))).to(x)
    return x * signs.view(-1, *[1] * (x.dim() - 1)) + 0.01 * torch.randn_like(x)


def trained(
    blobs: filfl.FederatedData, algorithm: Algorithm | None = None, augment: Augment | None = None, **options: Any
) -> Tensor:
    """The weights of client 3 after local training in round 2."""
    training = LocalTraining(1, algorithm or FedAvg(), Training(batch=8, epochs=2, **options), augment)
    model = FlatModel(network(), CPU)
    update = SerialClients(blobs, model, cross_entropy, training).train(2, [3], model.weights())[3]
    return update.weights.vector


def start() -> Tensor:
    return FlatModel(network(), CPU).vector.clone()


def by_torch(blobs: filfl.FederatedData, name: str, mu: float = 0.0, **options: Any) -> Tensor:
    """The same, as a loop in plain torch."""
    module = network()
    optimizer = getattr(torch.optim, name)(module.parameters(), **options)
    own = slice(blobs.offsets[3], blobs.train_ends[3])
    x, y = torch.from_numpy(blobs.x[own]).float(), torch.from_numpy(blobs.y[own])
    w_t = [parameter.detach().clone() for parameter in module.parameters()]
    for index in batches(len(y), 8, 2, None, stream(1, 2, "batches", 3)):

        def closure(index: np.ndarray = index) -> Tensor:
            optimizer.zero_grad()
            away = sum((p - q).square().sum() for p, q in zip(module.parameters(), w_t, strict=True))
            loss = cross_entropy(module(x[index]), y[index]) + mu / 2 * away
            loss.backward()
            return loss

        optimizer.step(closure)
    return torch.cat([parameter.detach().flatten() for parameter in module.parameters()])


NOT_FOR_LAYERS = {"SparseAdam": "does not support dense gradients", "Muon": "2D"}
"""Optimisers that need sparse gradients, or matrices only."""


@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if name not in NOT_FOR_LAYERS])
def test_every_optimizer_of_torch_trains_as_in_a_plain_loop(blobs: filfl.FederatedData, name: str) -> None:
    lr = 0.1 if name == "SGD" else None
    expected = by_torch(blobs, name, **({"lr": lr} if lr else {}))
    assert torch.allclose(trained(blobs, optimizer=name), expected, atol=1e-5), "with torch's default step size"
    assert not torch.allclose(expected, start(), atol=1e-4)


@pytest.mark.parametrize(
    ("options", "torchs"),
    [
        ({"optimizer": "Adam", "options": {"betas": [0.5, 0.9]}, "lr": 0.01}, {"betas": (0.5, 0.9), "lr": 0.01}),
        ({"optimizer": "RMSprop", "momentum": 0.5, "lr": 0.01}, {"momentum": 0.5, "lr": 0.01}),
        ({"optimizer": "AdamW", "weight_decay": 0.3, "lr": 0.01}, {"weight_decay": 0.3, "lr": 0.01}),
        ({"optimizer": "AdamW", "lr": 0.01}, {"weight_decay": 0.01, "lr": 0.01}),
        ({"optimizer": "AdamW", "options": {"weight_decay": 0}, "lr": 0.01}, {"weight_decay": 0, "lr": 0.01}),
        (
            {"optimizer": "SGD", "options": {"nesterov": True}, "momentum": 0.9, "lr": 0.05},
            {"nesterov": True, "momentum": 0.9, "lr": 0.05},
        ),
        ({"optimizer": "Adam", "schedule": "step", "factor": 0.5, "every": 2, "lr": 0.02}, {"lr": 0.01}),
    ],
)
def test_options_and_step_sizes_are_those_of_torch(
    blobs: filfl.FederatedData, options: dict[str, Any], torchs: dict[str, Any]
) -> None:
    assert torch.allclose(trained(blobs, **options), by_torch(blobs, options["optimizer"], **torchs), atol=1e-5)


@pytest.mark.parametrize("name", ["Adam", "Rprop"])
def test_fedprox_minimises_the_penalty_with_any_optimizer(blobs: filfl.FederatedData, name: str) -> None:
    options = {"optimizer": name, "lr": 0.05}
    assert torch.allclose(trained(blobs, FedProx(mu=0.7), **options), by_torch(blobs, name, mu=0.7, lr=0.05), atol=1e-5)
    assert torch.equal(trained(blobs, FedProx(mu=0.0), **options), trained(blobs, **options))


def test_the_optimizer_starts_anew_for_every_client_and_round(blobs: filfl.FederatedData) -> None:
    model = FlatModel(network(), CPU)
    training = LocalTraining(1, FedAvg(), Training(batch=8, optimizer="Adam"))
    clients = SerialClients(blobs, model, cross_entropy, training)
    w = model.weights()
    first = clients.train(1, [0, 1, 2], w)
    again = clients.train(1, [2, 0], w)
    assert all(torch.equal(first[k].weights.vector, again[k].weights.vector) for k in again)
    assert all(parameter.grad is None for parameter in model.trained), "gradients do not stay in memory"


@pytest.mark.parametrize("algorithm", [FedAvg(), FedProx(mu=0.5)], ids=["fedavg", "fedprox"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_huge_clip_changes_nothing(blobs: filfl.FederatedData, algorithm: Algorithm, momentum: float) -> None:
    options = {"momentum": momentum, "weight_decay": 0.01}
    assert torch.equal(trained(blobs, clip=1e30, **options), trained(blobs, **options))
    assert torch.allclose(
        trained(blobs, algorithm, clip=1e30, **options), trained(blobs, algorithm, **options), atol=1e-6
    )
    adam = {"optimizer": "Adam", "lr": 0.01}
    assert torch.equal(trained(blobs, algorithm, clip=1e30, **adam), trained(blobs, algorithm, **adam))


@settings(max_examples=8)
@given(clip=st.floats(1e-4, 10), lr=st.floats(1e-3, 1), mu=st.sampled_from([0.0, 3.0]))
def test_clip_bounds_the_norm_of_a_step(clip: float, lr: float, mu: float) -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(3, size=60)
    data = filfl.FederatedData.from_arrays(rng.normal(size=(60, 4)) + 2 * np.eye(3, 4)[y], y, np.arange(60) % 2)
    for steps in (1, 3):
        training = LocalTraining(1, FedProx(mu=mu), Training(batch=8, steps=steps, lr=lr, clip=clip))
        model = FlatModel(network(), CPU)
        w = model.weights()
        one = SerialClients(data, model, cross_entropy, training).train(1, [0], w)[0]
        moved = (one.weights.vector - w.vector).norm()
        assert moved <= steps * lr * clip * (1 + 1e-4) + 1e-6
        together = VectorizedClients(data, model, cross_entropy, training, threads=1)
        batched = together.train(1, [0, 1], w)[0]
        together.close()
        assert torch.allclose(batched.weights.vector, one.weights.vector, atol=1e-5), "vectorized clips the same"


def config_of(small: dict[str, Any], **changes: Any) -> Config:
    return Config.from_table(override(override({}, small), changes))


@pytest.mark.parametrize(
    ("changes", "mode"),
    [
        ({"training.clip": 1.0}, "vectorized"),
        ({"training.optimizer": "SGD"}, "vectorized"),
        ({"training.optimizer": "Adam"}, "serial"),
        ({"training.optimizer": "Adam", "rounds": 100}, "processes"),
        ({"training.optimizer": "SGD", "training.momentum": 0.9, "training.options": {"nesterov": True}}, "serial"),
    ],
)
def test_auto_chooses_the_executor_by_the_optimizer(
    small: dict[str, Any], changes: dict[str, Any], mode: str, single_thread: None
) -> None:
    config = config_of(small, **changes)
    parts = make_parts(config, None, None, print)
    training = LocalTraining(config.seed, config.algorithm, config.training)
    assert choose(config, parts.data, parts.net, parts.loss, training, workers=2) == mode


def test_augmented_batches_are_not_vectorized(small: dict[str, Any], single_thread: None) -> None:
    config = config_of(small, **{"execution.mode": "vectorized"})
    parts = make_parts(config, None, None, print)
    training = LocalTraining(config.seed, config.algorithm, config.training, flip)
    assert "one client at a time" in str(why_not_batched(parts.data, parts.net, parts.loss, training))
    said: list[str] = []
    with open_clients(config, parts.data, parts.net, parts.loss, parts.build, 1, said.append, flip) as clients:
        assert isinstance(clients, SerialClients)
    assert "falling back to serial" in said[0]


def test_processes_and_resume_agree_with_serial_bit_for_bit(small: dict[str, Any], tmp_path: Path) -> None:
    adam = {"training.optimizer": "Adam", "training.options.betas": [0.8, 0.9], "training.clip": 0.1}
    config = {**small, **adam, "algorithm.name": "fedprox", "rounds": 3, "filter.name": "none", "checkpoint.keep": 5}
    contents = {}
    for mode in ("serial", "processes"):
        changes = {"execution.mode": mode, "execution.workers": 2}
        filfl.simulate({**config, **changes}, augment=flip, out=tmp_path / mode)
        files = (tmp_path / mode / "rounds.jsonl", tmp_path / mode / "model.safetensors")
        contents[mode] = [file.read_bytes() for file in files]
    assert contents["serial"] == contents["processes"]
    for name in ("summary.json", "checkpoints/round-000002.checkpoint", "checkpoints/round-000003.checkpoint"):
        (tmp_path / "processes" / name).unlink()
    filfl.simulate({**config, **changes}, augment=flip, out=tmp_path / "processes", resume=True)
    assert [file.read_bytes() for file in files] == contents["serial"]


def test_sgd_by_name_is_the_default_bit_for_bit(small: dict[str, Any]) -> None:
    named = filfl.simulate({**small, "training.optimizer": "SGD", "training.lr": 0.1})
    assert named.records == filfl.simulate(small).records


def test_augment_sees_training_inputs_only_and_draws_by_client_and_round(blobs: filfl.FederatedData) -> None:
    seen: list[tuple[int, float]] = []

    def watch(x: Tensor, rng: np.random.Generator) -> Tensor:
        seen.append((len(x), rng.random()))
        return x

    config = {"rounds": 2, "training.batch": 8, "filter.name": "none", "selection.k": 2, "execution.mode": "serial"}
    watched = filfl.simulate(config, data=blobs, augment=watch)
    assert watched.records == filfl.simulate(config, data=blobs).records, "the identity changes nothing"
    trained = [int(blobs.num_train[k]) for record in watched.records for k in record["selected"]]
    _, *during = seen  # without the check before the first round
    assert sum(size for size, _ in during) == sum(trained)
    assert len({draw for _, draw in during}) == len(during)
    expected = stream(0, 1, "augment", watched.records[0]["selected"][0]).random()
    assert during[0][1] == expected


def test_augment_by_import_path(small: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_augment.py").write_text("def flip(x, rng):\n    return x.flip(-1)\n\nnumber = 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    by_path = filfl.simulate({**small, "training.augment": "my_augment:flip"})
    assert by_path.records == filfl.simulate(small, augment=lambda x, rng: x.flip(-1)).records
    assert by_path.config.table()["training"]["augment"] == "my_augment:flip"
    for path, sentence in {
        "my_augment:flop": 'training.augment = "my_augment:flop": my_augment has no flop; it has flip',
        "my_augment:number": "must be a function (got a int)",
        "flip": "is not an import path; write package.module:function",
        "no_such_module:f": "there is no module no_such_module",
    }.items():
        with pytest.raises(ConfigError) as error:
            filfl.simulate({**small, "training.augment": path})
        assert sentence in str(error.value)


@pytest.mark.parametrize(
    ("augment", "sentence"),
    [
        (
            lambda x, rng: x[:3],
            "augment must return a tensor with as many samples as it was given (16; got [3, 1, 8, 8])",
        ),
        (lambda x, rng: None, "got NoneType"),
        (lambda x: x, "augment does not fit the data: TypeError"),
        (3, "augment must be a function (x, rng) -> x (got int)"),
    ],
)
def test_mistakes_in_augment_are_reported_before_the_first_round(
    small: dict[str, Any], augment: Any, sentence: str
) -> None:
    with pytest.raises(PluginError) as error:
        filfl.simulate(small, augment=augment)
    assert sentence in str(error.value)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"training.optimizer": "adamw"}, 'a class of torch.optim (got "adamw"); did you mean "AdamW"?'),
        ({"training.optimizer": "Optimizer"}, "must be a class of torch.optim"),
        ({"training.optimizer": "zzz"}, "known: ASGD, Adadelta"),
        ({"training.optimizer": "Adam", "training.options.beta": 1}, "Adam has no option beta; did you mean betas?"),
        ({"training.optimizer": "Adam", "training.options.lr": 1}, "write training.lr"),
        ({"training.optimizer": "Adam", "training.options.betas": [2, 0.9]}, "cannot be used: Invalid beta parameter"),
        ({"training.optimizer": "Adam", "training.options.betas": "x"}, "cannot be used"),
        ({"training.optimizer": "Adam", "training.momentum": 0.9}, "momentum is not an option of Adam; remove it"),
        ({"training.weight_decay": 0.1, "training.options.weight_decay": 0.1}, "are the same option; set only one"),
        ({"training.optimizer": "SparseAdam"}, "does not support dense gradients"),
        ({"training.optimizer": "Muon"}, "Muon"),
        ({"training.options": 3}, "training.options must be a table of options (got 3)"),
        ({"training.clip": 0}, "training.clip must be a number above 0 (got 0)"),
        (
            {"training.optimizer": "Adam", "execution.mode": "vectorized"},
            'execution.mode = "vectorized" is for SGD only (got training.optimizer = "Adam"); set execution.mode to',
        ),
        (
            {"training.options.dampening": 0.1, "execution.mode": "vectorized"},
            '(got training.optimizer = "SGD" with training.options)',
        ),
    ],
)
def test_mistakes_are_reported_in_a_sentence(small: dict[str, Any], changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as error:
        filfl.simulate({**small, **changes})
    assert sentence in str(error.value) and "\n" not in str(error.value)


def test_options_in_every_form_of_a_config(tmp_path: Path) -> None:
    expected = {"betas": [0.8, 0.9], "eps": 1e-6}
    (tmp_path / "a.toml").write_text(
        '[training]\noptimizer = "Adam"\noptions = {betas = [0.8, 0.9], eps = 1e-6}\n[arms.x]\n"rounds" = 3\n'
    )
    arm = "x:training.optimizer=Adam,training.options={betas=[0.8,0.9],eps=1e-6},rounds=3"
    given = {"training.optimizer": "Adam", "training.options": expected}
    single = {"training.options.betas": [0.8, 0.9], "training.optimizer": "Adam", "training.options.eps": 1e-6}
    for config in (
        Config.read(tmp_path / "a.toml"),
        Config.read(given),
        Config.read(single),
        Config.read({"training": {"optimizer": "Adam", "options": expected}}),
        Config.read(parse_arm(arm).changes),
        Config().with_changes(parse_arm(arm).changes),
    ):
        assert config.training.optimizer == "Adam" and config.training.options == expected
        assert Config.from_table(config.table()) == config
    changed = Config.read(given).with_changes({"training.optimizer": "RMSprop"})
    assert changed.training.options is None, "options belong to one optimizer"
    kept = Config.read(given).with_changes({"training.optimizer": "Adam", "training.options.eps": 1e-4})
    assert kept.training.options == {"betas": [0.8, 0.9], "eps": 1e-4}
