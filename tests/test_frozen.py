"""Frozen parameters are not sent, counted, averaged, checkpointed or held per client, and nothing else changes."""

import gc
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.nn import functional

import filfl
from filfl.algorithms.fedavg import FedAvg
from filfl.config.sections import Training
from filfl.core.clients import Update
from filfl.errors import RunError
from filfl.evaluation import Samples, cross_entropy
from filfl.filtering.filtering_set import FilteringSet
from filfl.simulation.executors.processes import ProcessClients
from filfl.simulation.executors.serial import LocalTraining, SerialClients
from filfl.simulation.executors.vectorized import VectorizedClients
from filfl.system import one_thread
from filfl.weights import FlatModel
from live_tensors import live_bytes
from replay import replay

CPU = torch.device("cpu")
HIDDEN = 50
TRAINED, FROZEN = HIDDEN * 3 + 3, 4 * HIDDEN + HIDDEN  # the head; the layer below it
CONFIG: dict[str, Any] = {"rounds": 5, "filter.period": 2, "filter.size": 18, "selection.k": 3, "training.lr": 0.5}
SCALARS = 16
"""Bytes beside the weights in a reply."""


class Head(nn.Module):
    """A trained head on a layer that does not change: a frozen parameter, or buffers with the same values, which are
    sent as everything was before."""

    def __init__(self, frozen: bool) -> None:
        super().__init__()
        below, self.head = nn.Linear(4, HIDDEN), nn.Linear(HIDDEN, 3)
        for name, value in below.named_parameters():
            if frozen:
                self.register_parameter(name, nn.Parameter(value.detach(), requires_grad=False))
            else:
                self.register_buffer(name, value.detach())

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.head(functional.linear(x, self.weight, self.bias).tanh())
        return outputs


def frozen_head() -> nn.Module:
    return Head(frozen=True)


def sent_head() -> nn.Module:
    return Head(frozen=False)


def scaled(record: dict[str, Any]) -> dict[str, Any]:
    """The record of a run in which all messages are models, with the bytes of messages without the frozen part."""
    models, rest = divmod(record["uplink_bytes"], 4 * (TRAINED + FROZEN) + SCALARS)
    sent, left = divmod(record["downlink_bytes"], 4 * (TRAINED + FROZEN))
    assert rest == left == 0
    return {**record, "uplink_bytes": models * (4 * TRAINED + SCALARS), "downlink_bytes": sent * 4 * TRAINED}


@pytest.mark.parametrize("mode", ["serial", "vectorized"])
@pytest.mark.parametrize(
    "options",
    [
        {"filter.name": "dgf"},
        {"filter.name": "local-search", "filter.reward": "ensemble"},
        {"filter.name": "dgf", "attack.name": "sign-flip", "attack.share": 0.3, "execution.memory": 2e-6},
        {"filter.name": "rgf", "selection.name": "divfl", "selection.of": "updates", "training.momentum": 0.5},
    ],
    ids=lambda options: " ".join(map(str, options.values())),
)
def test_choices_and_weights_are_those_of_a_run_that_sends_everything(
    options: dict[str, Any], mode: str, blobs: filfl.FederatedData
) -> None:
    config = {**CONFIG, **options, "execution.mode": "serial"}
    sent = filfl.simulate(config, data=blobs, model=sent_head)
    assert any(len(record["filtered"]) < 9 for record in sent.records)
    expected = [scaled(record) for record in sent.records]
    frozen = replay({**config, "execution.mode": mode}, expected, data=blobs, model=frozen_head)
    for name, value in sent.model.state_dict().items():
        assert torch.allclose(frozen.model.state_dict()[name], value, atol=1e-5)


def test_upload_by_hand(blobs: filfl.FederatedData) -> None:
    """Statistics of a frozen BatchNorm still change in training, so they are sent."""

    def model() -> nn.Module:
        norm = nn.BatchNorm1d(7).requires_grad_(False)
        return nn.Sequential(nn.Linear(4, 7).requires_grad_(False), norm, nn.Linear(7, 3))

    size = 4 * (7 * 3 + 3) + 4 * (7 + 7) + 8  # the head, mean and variance, num_batches_tracked
    result = filfl.simulate({**CONFIG, "rounds": 2}, data=blobs, model=model)
    assert [record["uplink_bytes"] for record in result.records] == [9 * (size + SCALARS), 9 * (size + SCALARS)]
    assert [record["downlink_bytes"] for record in result.records] == [9 * size, 9 * size]
    assert result.model[1].running_mean.any() and int(result.model[1].num_batches_tracked) > 0


def test_logits_transport_uploads_the_trained_part_of_selected_clients(blobs: filfl.FederatedData) -> None:
    logits = {**CONFIG, "rounds": 1, "filter.reward": "ensemble", "filter.transport": "logits"}
    (record,) = filfl.simulate(logits, data=blobs, model=frozen_head).records
    assert not record["refused"]
    selected = len(record["selected"])
    assert record["uplink_bytes"] == 9 * (4 * 18 * 3 + SCALARS) + selected * (4 * TRAINED + SCALARS)


def own_generator() -> nn.Module:
    """A model whose frozen part is different in every network: its generator is not seeded by filfl."""
    model = Head(frozen=True)
    model.weight.data = torch.from_numpy(np.random.default_rng().normal(size=(HIDDEN, 4)).astype(np.float32))
    return model


def own_network() -> FlatModel:
    return FlatModel(own_generator(), CPU)


def test_workers_train_on_the_frozen_part_of_this_process(blobs: filfl.FederatedData) -> None:
    training, ids = LocalTraining(3, FedAvg(), Training(epochs=2, batch=4, lr=0.1)), list(range(9))
    with one_thread():
        net = own_network()
        w = net.weights()
        serial = SerialClients(blobs, net, cross_entropy, training).train(1, ids, w)
        with closing(ProcessClients(blobs, net, cross_entropy, training, own_network, workers=1)) as clients:
            processes = clients.train(1, ids, w)
    for k in ids:
        assert torch.equal(processes[k].weights.vector, serial[k].weights.vector)
        assert processes[k].train_loss == serial[k].train_loss


def test_processes_and_serial_give_the_same_bytes(blobs: filfl.FederatedData, tmp_path: Path) -> None:
    for mode in ("serial", "processes"):
        config = {**CONFIG, "execution.mode": mode, "execution.workers": 1}
        filfl.simulate(config, data=blobs, model=frozen_head, out=tmp_path / mode)
    for name in ("rounds.jsonl", "model.safetensors"):
        assert (tmp_path / "serial" / name).read_bytes() == (tmp_path / "processes" / name).read_bytes()


def test_networks_of_V_share_the_frozen_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("filfl.filtering.networks.MIN_WORK", 0)
    x, y = torch.randn(6, 4), torch.tensor([0, 1, 2, 0, 1, 2])
    net = own_network()
    samples = Samples(x, y, torch.tensor(1.0), torch.tensor(0.0))
    V = FilteringSet.of(net, samples, cross_entropy, own_network, workers=3)
    with closing(V):
        assert V.networks.at_once == 3
        outputs = V.outputs([net.weights()] * 12)
    assert all(torch.equal(z, outputs[0]) for z in outputs)


def held(updates: dict[int, Any]) -> int:
    """The bytes of the memory that the updates of a cohort occupy."""
    assert all(isinstance(update, Update) for update in updates.values())
    storages = [update.weights.vector.untyped_storage() for update in updates.values()]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def test_executors_hold_the_trained_part_of_each_client(blobs: filfl.FederatedData) -> None:
    training, ids = LocalTraining(3, FedAvg(), Training(epochs=1, batch=4, lr=0.1)), list(range(9))
    net = FlatModel(frozen_head(), CPU)
    w = net.weights()
    assert held(SerialClients(blobs, net, cross_entropy, training).train(1, ids, w)) == 9 * 4 * TRAINED
    with closing(VectorizedClients(blobs, net, cross_entropy, training, threads=1)) as clients:
        assert held(clients.train(1, ids, w)) == 9 * 4 * TRAINED


@pytest.mark.parametrize("reward", ["average", "ensemble"])
def test_memory_of_a_filter_round_is_n_trained_parts(reward: str, blobs: filfl.FederatedData) -> None:
    def measured(frozen: bool) -> int:
        """The bytes of the run's tensors while the filter runs."""
        seen: list[int] = []

        def keep_all(clients: Any, value: Any, rng: Any) -> filfl.Filtering:
            value(frozenset(clients))  # sums are made when they are needed
            seen.append(live_bytes() - before)
            return filfl.Filtering(kept=tuple(clients))

        class Wide(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                big = torch.randn(4, 40_000)
                if frozen:
                    self.big = nn.Parameter(big, requires_grad=False)
                else:
                    self.register_buffer("big", big)
                self.head = nn.Linear(4, 3)

            def forward(self, x: Tensor) -> Tensor:
                outputs: Tensor = self.head((x @ self.big)[:, :4])
                return outputs

        gc.collect()
        before = live_bytes()
        config = {"rounds": 1, "selection.k": 3, "execution.mode": "serial", "filter.reward": reward}
        filfl.simulate({**config, "filter.honest_gain": False}, data=blobs, model=Wide, filter=keep_all)
        return seen[0]

    model = 4 * 4 * 40_000
    assert measured(frozen=False) > 9 * model, "every client's copy"
    assert measured(frozen=True) < 2 * model, "that of the network, and the trained parts"


def test_a_run_resumes_with_the_same_bytes_and_stores_the_frozen_part_once(
    blobs: filfl.FederatedData, tmp_path: Path
) -> None:
    config = {**CONFIG, "checkpoint.every": 1, "checkpoint.keep": 9}
    whole = filfl.simulate(config, data=blobs, model=frozen_head, out=tmp_path / "whole")

    def stop(record: Any, state: Any) -> None:
        if record["round"] == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        filfl.simulate(config, data=blobs, model=frozen_head, out=tmp_path / "cut", callbacks=[stop])
    filfl.simulate(config, data=blobs, model=frozen_head, out=tmp_path / "cut", resume=True)
    files = ["rounds.jsonl", "model.safetensors", *(f"checkpoints/round-{t:06d}.checkpoint" for t in range(1, 6))]
    for name in files:
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "cut" / name).read_bytes(), name
    stored = safetensors.torch.load((tmp_path / "whole" / files[2]).read_bytes()[64:])
    assert stored["w.vector"].numel() == TRAINED

    model = frozen_head()  # as in another script: with other frozen values, which the stored ones replace
    model.load_state_dict(safetensors.torch.load_file(tmp_path / "whole" / "model.safetensors"))
    x = torch.from_numpy(blobs.test_x).float()
    assert torch.equal(model(x), whole.model(x))
    again = filfl.simulate(config, data=blobs, model=frozen_head, out=tmp_path / "whole", resume=True)
    assert again.already_finished and torch.equal(again.model(x), whole.model(x))


def test_another_frozen_part_is_another_run(blobs: filfl.FederatedData, tmp_path: Path) -> None:
    def doubled() -> nn.Module:
        model = frozen_head()
        model.weight.mul_(2)
        return model

    filfl.simulate(CONFIG, data=blobs, model=frozen_head, out=tmp_path)
    with pytest.raises(RunError, match="contains a run with other data or another model"):
        filfl.simulate(CONFIG, data=blobs, model=doubled, out=tmp_path, resume=True)


class Momentum(nn.Module):
    """Changes a frozen parameter in training, as a momentum encoder does."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 3)
        self.slow = nn.Parameter(torch.zeros(3, 4), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.slow.mul_(0.9).add_(self.head.weight.detach(), alpha=0.1)
        outputs: Tensor = self.head(x)
        return outputs


def test_a_model_that_changes_its_frozen_part_is_refused(blobs: filfl.FederatedData) -> None:
    messages: list[str] = []
    config = {"rounds": 1, "filter.name": "none", "selection.k": 3, "execution.mode": "serial"}
    filfl.simulate(config, data=blobs, model=Momentum, say=messages.append)
    assert "every update was refused" in messages[-1]
    assert "the model changes its frozen parameter slow; make it a buffer, which is sent" in messages[-1]
