"""The model of examples/lora on Flower: the uplink is the adapters', and the choices are those of the simulator."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from sites import federation
from test_flower_bytes import CountingGrid
from torch import nn

from filfl import Config, FederatedData
from filfl.flower import FilFL, FilteringSet, get_trained, keep_weights, set_trained
from filfl.rng import SETUP, stream, torch_seeded
from filfl.runs import read_run
from replay import replay

pytestmark = pytest.mark.usefixtures("single_thread")

REASON = "peft and transformers are not installed: pip install '.[dev]'"
peft = pytest.importorskip("peft", reason=REASON)
pytest.importorskip("transformers", reason=REASON)

import lora  # noqa: E402  (needs both)

CPU = torch.device("cpu")
SETTINGS = {**lora.SETTINGS, "rounds": 2, "filter.period": 5, "training.epochs": 1, "aggregation.name": "by-examples"}


def network(context: object = None) -> nn.Module:
    """The network with the simulator's initial weights: here all sites draw the base model, elsewhere they load it."""
    with torch_seeded(stream(0, SETUP, "initial-weights"), CPU):
        return lora.Classifier()


def site_app(
    data: FederatedData,
    get: Callable[[nn.Module], ArrayRecord] = get_trained,
    put: Callable[[nn.Module, ArrayRecord], Any] = set_trained,
) -> ClientApp:
    """Sites that train as clients of the simulator do."""
    app = ClientApp(mods=[keep_weights(network)])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        model, site = network(), int(context.node_config["partition-id"])
        put(model, message.content.array_records["arrays"])
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=SETTINGS["training.lr"])
        own = slice(int(data.offsets[site]), int(data.train_ends[site]))
        x, y = torch.from_numpy(data.x[own]).long(), torch.from_numpy(data.y[own])
        t = int(str(message.content.config_records["config"]["server-round"]))
        order = torch.from_numpy(stream(0, t, "batches", site).permutation(len(y)))
        total = 0.0
        for index in order.split(SETTINGS["training.batch"]):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x[index]), y[index])
            loss.backward()
            optimizer.step()
            total += len(index) * loss.item()
        metrics = MetricRecord({"num-examples": len(y), "train_loss": total / len(y)})
        return Message(RecordDict({"arrays": get(model), "metrics": metrics}), reply_to=message)

    return app


def server_test(data: FederatedData) -> Callable[[int, ArrayRecord], MetricRecord]:
    """The test of the simulator, as `evaluate_fn`."""
    model, x, y = network(), torch.from_numpy(data.test_x).long(), torch.from_numpy(data.test_y)

    def test(t: int, arrays: ArrayRecord) -> MetricRecord:
        set_trained(model, arrays)
        with torch.no_grad():
            return MetricRecord({"loss": nn.functional.cross_entropy(model(x), y).item()})

    return test


@pytest.mark.parametrize(
    "options",
    [
        {"filter.name": "dgf"},
        {"filter.name": "local-search", "filter.reward": "ensemble", "filter.transport": "logits"},
    ],
    ids=["models", "logits"],
)
def test_adapters_are_sent_and_choices_are_those_of_the_simulator(options: Mapping[str, Any], tmp_path: Path) -> None:
    data, config = lora.load_data(), {**SETTINGS, **options}
    grid = CountingGrid(federation(site_app(data), sites=lora.CLIENTS).nodes)
    V = FilteringSet(network, data.filter_x, data.filter_y, device="cpu")
    own = Config.read({**config, "data.name": "arrays", "model.name": "own"})
    strategy = FilFL(FedAvg(fraction_evaluate=0.0), config=own, evaluate=V, out=tmp_path)
    arrays = get_trained(network())
    strategy.start(grid, arrays, num_rounds=2, timeout=60.0, evaluate_fn=server_test(data))
    theirs = read_run(tmp_path).records
    assert not any(record["refused"] for record in theirs)
    replay(config, theirs, data=data, model=lora.Classifier)  # the bytes in the records too
    adapters = sum(array.numpy().nbytes for array in arrays.values())
    if "filter.transport" not in options:
        assert theirs[0]["uplink_bytes"] == lora.CLIENTS * (adapters + 16)
        # Flower adds 300 bytes of names and headers to each of the 12 small arrays.
        assert grid.uplink < 2 * sum(record["uplink_bytes"] for record in theirs)


def test_names_of_peft_work_with_a_function_that_evaluates_them(tmp_path: Path) -> None:
    """Apps as in Flower's own LoRA examples send the adapters by the names that `peft` saves them under."""

    def get(model: nn.Module) -> ArrayRecord:
        return ArrayRecord(dict(peft.get_peft_model_state_dict(model.transformer)))

    def put(model: nn.Module, arrays: ArrayRecord) -> None:
        peft.set_peft_model_state_dict(model.transformer, arrays.to_torch_state_dict())

    data = lora.load_data()
    model, x, y = network(), torch.from_numpy(data.filter_x).long(), torch.from_numpy(data.filter_y)

    def evaluate(arrays: ArrayRecord) -> float:
        put(model, arrays)
        with torch.no_grad():
            return float(nn.functional.cross_entropy(model(x), y))

    records = []
    for name, app, arrays, judge in (
        ("peft", site_app(data, get, put), get(network()), evaluate),
        ("filfl", site_app(data), get_trained(network()), FilteringSet(network, x, y, device="cpu")),
    ):
        grid = CountingGrid(federation(app, sites=lora.CLIENTS).nodes)
        strategy = FilFL(FedAvg(fraction_evaluate=0.0), k=4, evaluate=judge, out=tmp_path / name)
        strategy.start(grid, arrays, num_rounds=1, timeout=60.0)
        records.append(read_run(tmp_path / name).records[0])
    one, other = records
    assert one["uplink_bytes"] == other["uplink_bytes"] and one["filtered"] == other["filtered"]
    assert one["reward_filtered"] == pytest.approx(other["reward_filtered"], abs=1e-5)
