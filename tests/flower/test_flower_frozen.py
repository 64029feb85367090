"""Frozen parameters on Flower: apps send the rest of the model, and the server has a network with the frozen part."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from sites import CLASSES, FEATURES, batches, blobs, federation
from test_flower_bytes import BY_LOGITS, CountingGrid, assert_equal
from torch import nn

from filfl.errors import PluginError, RunError
from filfl.flower import FilFL, FilteringSet, add_queries, get_trained, keep_weights, set_trained
from filfl.runs import read_run

pytestmark = pytest.mark.usefixtures("single_thread")

HIDDEN = 2000
TRAINED = HIDDEN * CLASSES + CLASSES


def new_net() -> nn.Module:
    torch.manual_seed(0)
    below, head = nn.Linear(FEATURES, HIDDEN).requires_grad_(False), nn.Linear(HIDDEN, CLASSES)
    return nn.Sequential(below, nn.Tanh(), head)


def trained_app(send: Callable[[nn.Module], ArrayRecord] = get_trained) -> ClientApp:
    """An app that trains the head, answers queries, and can keep its weights; `send` is what it replies with."""
    app = ClientApp(mods=[keep_weights(lambda context: new_net())])
    add_queries(app, lambda context: (new_net(), batches(context)))

    @app.train()
    def train(message: Message, context: Context) -> Message:
        model = new_net()
        set_trained(model, message.content.array_records["arrays"])
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.01)
        number = 0
        for batch in batches(context):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(batch["img"]), batch["label"]).backward()
            optimizer.step()
            number += len(batch["label"])
        metrics = MetricRecord({"num-examples": number, "train_loss": 1.0})
        return Message(RecordDict({"arrays": send(model), "metrics": metrics}), reply_to=message)

    return app


def everything(model: nn.Module) -> ArrayRecord:
    return ArrayRecord(model.state_dict())


def start(grid: CountingGrid, out: Path, arrays: ArrayRecord, **changes: Any) -> list[Any]:
    given = {"filter": "dgf", "k": 2, "h": 2, "evaluate": FilteringSet(new_net, *blobs(0)), **changes}
    strategy = FilFL(FedAvg(fraction_evaluate=0.0), out=out, **given)
    strategy.start(grid, arrays, num_rounds=3, timeout=30.0)
    return read_run(out).records


@pytest.mark.parametrize(
    "options",
    [{}, {"selection.name": "power-of-choice"}, {"selection.name": "divfl"}, {"filter.data": "variable"}, BY_LOGITS],
    ids=lambda options: " ".join(options.values()) or "models",
)
def test_only_the_trained_part_is_sent_and_counted(options: dict[str, Any], tmp_path: Path) -> None:
    grid = CountingGrid(federation(trained_app()).nodes)
    records = start(grid, tmp_path / "run", get_trained(new_net()), options=options)
    assert not any(record["refused"] for record in records)
    assert_equal(grid, records)
    if not options:
        assert records[0]["uplink_bytes"] == 6 * (4 * TRAINED + 16) and records[0]["downlink_bytes"] == 24 * TRAINED
    stored = safetensors.torch.load_file(tmp_path / "run" / "model.safetensors")
    before = new_net().state_dict()
    assert stored.keys() == before.keys(), "the complete model"
    assert torch.equal(stored["0.weight"], before["0.weight"]) and not torch.equal(stored["2.bias"], before["2.bias"])


def test_a_function_that_evaluates_arrays_can_hold_the_frozen_part(tmp_path: Path) -> None:
    """The server then knows only what is sent: arrays of any names, and that is what it stores."""

    def evaluate(arrays: ArrayRecord) -> float:
        model, (x, y) = new_net(), blobs(0)
        set_trained(model, arrays)
        with torch.no_grad():
            return float(nn.functional.cross_entropy(model(x), y))

    grid = CountingGrid(federation(trained_app()).nodes)
    arrays = get_trained(new_net())
    by_function = start(grid, tmp_path / "function", arrays, evaluate=evaluate)
    by_network = start(grid, tmp_path / "network", arrays)
    for one, other in zip(by_function, by_network, strict=True):
        assert one["filtered"] == other["filtered"] and one["uplink_bytes"] == other["uplink_bytes"]
        assert one["reward_all"] == pytest.approx(other["reward_all"], abs=1e-5)
    assert safetensors.torch.load_file(tmp_path / "function" / "model.safetensors").keys() == {"2.weight", "2.bias"}


def test_whole_state_dicts_are_refused_with_the_function_to_use(tmp_path: Path) -> None:
    reason = "key 0.bias is a frozen parameter, which is not sent; on Flower, send filfl.flower.get_trained"
    with pytest.raises(PluginError, match=f"initial_arrays do not fit the network of the filtering set: {reason}"):
        start(CountingGrid(federation(trained_app()).nodes), tmp_path / "server", everything(new_net()))
    grid = CountingGrid(federation(trained_app(send=everything)).nodes)
    with pytest.raises(RunError, match=r"every update was refused in 3 rounds in a row; in round 3, .*get_trained"):
        start(grid, tmp_path / "clients", get_trained(new_net()))
    record = read_run(tmp_path / "clients").records[0]
    assert len(record["refused"]) == 6 and all(text.startswith(reason) for text in record["refused"].values())


def test_get_and_set_trained() -> None:
    model, other = new_net(), new_net()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    arrays = get_trained(model)
    assert list(arrays) == ["2.weight", "2.bias"]
    set_trained(other, arrays)
    assert torch.equal(other[2].bias, model[2].bias) and not torch.equal(other[0].bias, model[0].bias)
    set_trained(other, everything(model))
    assert torch.equal(other[0].bias, model[0].bias), "frozen parameters may be given too"
    with pytest.raises(PluginError, match=r"the arrays do not fit the model: key 2\.bias is missing"):
        set_trained(other, ArrayRecord({"2.weight": model[2].weight.detach()}))
    with pytest.raises(PluginError, match="the arrays do not fit the model: key extra is not in the model"):
        set_trained(other, ArrayRecord({**arrays.to_torch_state_dict(), "extra": torch.ones(1)}))
    plain = nn.BatchNorm1d(2)
    assert list(get_trained(plain)) == list(plain.state_dict()), "all of a model without frozen parameters"
