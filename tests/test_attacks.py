"""Attacks: which clients attack, what they send, and that nothing else changes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import filfl
from filfl.algorithms.fedavg import FedAvg
from filfl.attacks import ATTACKS
from filfl.attacks.scaled import Scaled, SignFlip
from filfl.config.config import Config
from filfl.config.sections import Training
from filfl.core.clients import Failure, Update
from filfl.core.queries import GradientQuery, LossQuery
from filfl.evaluation import cross_entropy
from filfl.runs import read_run
from filfl.simulation.executors.serial import LocalTraining, SerialClients
from filfl.simulation.wrappers.attack import AttackingClients
from filfl.weights import FlatModel, Weights
from replay import replay

TRAINING = LocalTraining(1, FedAvg(), Training(epochs=1, batch=8, lr=0.1))

vectors = st.lists(st.integers(-1000, 1000), min_size=4, max_size=4).map(lambda v: torch.tensor(v, dtype=torch.float32))


def test_sent_weights_by_hand() -> None:
    w_t, w = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 1.0])
    assert SignFlip(share=1).sent(w, w_t).tolist() == [-1.0, 3.0]
    assert Scaled(share=1).sent(w, w_t).tolist() == [21.0, -8.0]
    assert (w.tolist(), w_t.tolist()) == ([3.0, 1.0], [1.0, 2.0]), "neither is changed"


@given(vectors, vectors)
def test_flipping_the_sign_twice_is_no_attack(w: torch.Tensor, w_t: torch.Tensor) -> None:
    flip = SignFlip(share=1)
    assert torch.equal(flip.sent(flip.sent(w, w_t), w_t), w)
    assert torch.equal(flip.sent(w, w_t) - w_t, w_t - w)


@given(st.lists(st.floats(-10, 10, width=32), min_size=4, max_size=4), vectors)
def test_a_factor_of_one_is_no_attack_up_to_rounding(numbers: list[float], w_t: torch.Tensor) -> None:
    w = torch.tensor(numbers)
    assert torch.allclose(Scaled(share=1, factor=1.0).sent(w, w_t), w, atol=1e-3)


@given(st.integers(1, 200), st.floats(0, 1), st.floats(0, 1), st.integers(0, 5))
def test_attacking_clients_depend_on_seed_and_share_alone(n: int, one: float, other: float, seed: int) -> None:
    small, large = (
        set(cls(share=share).bad(n, seed)) for cls, share in zip((SignFlip, Scaled), sorted((one, other)), strict=True)
    )
    assert small <= large <= set(range(n))
    assert len(large) == int(max(one, other) * n + 1e-9)


def test_shares_are_rounded_down() -> None:
    assert len(SignFlip(share=0.29).bad(100, 0)) == 29 and len(SignFlip(share=0.09).bad(10, 0)) == 0
    assert set(SignFlip(share=0.3).bad(20, 0)) != set(SignFlip(share=0.3).bad(20, 1))
    assert not len(ATTACKS["none"]().bad(10, 0))


class Scripted(SerialClients):
    """Serial clients, of which client 3 fails to train. Stores the answers before the attack."""

    def train(self, t: int, ids: Sequence[int], weights: Weights) -> dict[int, Update | Failure]:
        self.answers = {k: Failure("no") if k == 3 else reply for k, reply in super().train(t, ids, weights).items()}
        return self.answers


def test_only_attacking_clients_change_and_only_their_trained_weights(blobs: filfl.FederatedData) -> None:
    model = FlatModel(nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3)), torch.device("cpu"))
    w_t, trained = model.weights(), model.layout.num_trained
    clients = Scripted(blobs, model, cross_entropy, TRAINING)
    attacked = AttackingClients(clients, model.layout, SignFlip(share=1), np.array([0, 2, 3]))
    answers = attacked.train(1, [0, 1, 2, 3], w_t)
    honest = clients.answers
    assert list(answers) == [0, 1, 2, 3] and answers[1] is honest[1] and answers[3] == Failure("no")
    for k in (0, 2):
        sent, kept = answers[k].weights, honest[k].weights
        assert torch.equal(sent.vector[:trained], w_t.vector[:trained] - (kept.vector - w_t.vector)[:trained])
        assert torch.equal(sent.vector[trained:], kept.vector[trained:]), "BatchNorm's statistics"
        assert torch.equal(sent.integers, kept.integers) and sent.integers.tolist() == [3]
        assert (answers[k].num_examples, answers[k].train_loss) == (honest[k].num_examples, honest[k].train_loss)
        again = SerialClients(blobs, model, cross_entropy, TRAINING).train(1, [k], w_t)[k]
        assert torch.equal(kept.vector, again.weights.vector), "the row of the executor is not modified"
    assert attacked.query(LossQuery(), [0, 1], w_t) == clients.query(LossQuery(), [0, 1], w_t)
    assert torch.equal(attacked.query(GradientQuery(), [0], w_t)[0], clients.query(GradientQuery(), [0], w_t)[0])
    assert attacked.num_examples([0, 1]).tolist() == clients.num_examples([0, 1]).tolist()


@pytest.mark.parametrize("name", ["sign-flip", "scaled"])
def test_an_attack_without_clients_is_no_attack_bit_for_bit(small: dict[str, Any], name: str) -> None:
    plain = filfl.simulate(small)
    attacked = filfl.simulate({**small, "attack.name": name, "attack.share": 0.08})  # of 12 clients
    assert attacked.records == plain.records
    assert all(map(torch.equal, attacked.model.parameters(), plain.model.parameters()))


def test_doubled_updates_of_all_clients_equal_a_doubled_step_size(small: dict[str, Any]) -> None:
    # Without a filter: the two runs round differently, and a tie could be decided otherwise.
    one_step = {**small, "rounds": 3, "filter.name": "none", "training.steps": 1, "training.lr": 0.1}
    doubled = {"attack.name": "scaled", "attack.share": 1.0, "attack.factor": 2.0}
    attacked, honest = filfl.simulate({**one_step, **doubled}), filfl.simulate({**one_step, "training.lr": 0.2})
    for ours, theirs in zip(attacked.model.parameters(), honest.model.parameters(), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-5)


def test_every_executor_has_the_same_attacking_clients(small: dict[str, Any]) -> None:
    config = {**small, "attack.name": "sign-flip", "attack.share": 0.4, "filter.name": "rgf"}
    in_a_file = {"execution.memory": 1e-6}
    serial = filfl.simulate({**config, "execution.mode": "serial"})
    assert serial.records != filfl.simulate({**small, "filter.name": "rgf", "execution.mode": "serial"}).records
    assert filfl.simulate({**config, **in_a_file, "execution.mode": "serial"}).records == serial.records
    processes = {"execution.mode": "processes", "execution.workers": 2}
    assert filfl.simulate({**config, **processes}).records == serial.records
    for more in ({}, in_a_file):
        replay({**config, **more, "execution.mode": "vectorized"}, serial.records)


def test_the_filter_removes_clients_with_flipped_updates(small: dict[str, Any], tmp_path: Path) -> None:
    config = {**small, "attack.name": "sign-flip", "attack.share": 0.34, "availability.n": 12}
    filfl.simulate(config, out=tmp_path / "run")
    run = read_run(tmp_path / "run")
    assert run.clients.noisy.sum() == 4
    shares = [run.clients.noisy[record["filtered"]].mean() for record in run.records if record["filtered"]]
    assert np.mean(shares) < 4 / 12, "the filter was worse than chance"


def test_clients_csv_names_the_fault_of_each_client(small: dict[str, Any], tmp_path: Path) -> None:
    config = {**small, "rounds": 1, "data.noisy": 0.5, "attack.name": "scaled", "attack.share": 0.5}
    filfl.simulate(config, out=tmp_path / "run")
    clients = read_run(tmp_path / "run").clients
    made = Config.from_table({"data": {"clients": 12, "noisy": 0.5}, "attack": {"name": "scaled", "share": 0.5}})
    labels, sends = made.data.load(0).noisy, np.isin(np.arange(12), made.attack.bad(12, 0))
    words = {(False, False): "", (True, False): "random labels", (False, True): "scaled"}
    words[True, True] = "random labels and scaled"
    assert clients.fault.tolist() == [words[bool(a), bool(b)] for a, b in zip(labels, sends, strict=True)]
    assert set(clients.fault) == set(words.values())
    assert clients.noisy.tolist() == (labels | sends).tolist()
    assert (tmp_path / "run" / "clients.csv").read_text().startswith("id,name,num_train,fault,trusted\n")


class Died(Exception):
    """Simulates a run that is killed."""


def _die(record: Any, state: Any) -> None:
    if record["round"] == 3:
        raise Died


def test_a_resumed_run_must_have_the_same_attack(small: dict[str, Any], tmp_path: Path) -> None:
    config = {**small, "rounds": 5, "attack.name": "scaled", "attack.share": 0.3}
    with pytest.raises(Died):
        filfl.simulate(config, out=tmp_path / "cut", callbacks=[_die])
    with pytest.raises(filfl.FilflError, match=r"attack.share: 0.3 there, 0.5 here"):
        filfl.simulate({**config, "attack.share": 0.5}, out=tmp_path / "cut", resume=True)
