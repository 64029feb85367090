"""A node that sends the same number for all of its weights, and is the first one that the filter visits.

`test_constant_weights.py` says why DGF and RGF keep it if R({}) is 0, and is the same test in the simulator.
"""

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from hostile_nodes import altered
from sites import federation, initial
from torch import nn

from filfl.flower import FilFL
from filfl.rng import stream

pytestmark = pytest.mark.usefixtures("single_thread")
NODES, SAMPLES, SEEDS = 10, 100, range(3)


@cache
def digits() -> tuple[torch.Tensor, torch.Tensor]:
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    return torch.tensor(x[order] / 16, dtype=torch.float32), torch.tensor(y[order])


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    model = net()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    first = SAMPLES * int(context.node_config["partition-id"])
    x, y = (part[first : first + SAMPLES] for part in digits())
    for _ in range(4):
        for i in range(0, SAMPLES, 16):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[i : i + 16]), y[i : i + 16]).backward()
            optimizer.step()
    metrics = MetricRecord({"num-examples": SAMPLES})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)


def evaluate(arrays: ArrayRecord) -> float:
    model = net()
    model.load_state_dict(arrays.to_torch_state_dict())
    x, y = (part[-100:] for part in digits())
    with torch.no_grad():
        return float(nn.functional.cross_entropy(model(x), y))


def attacked(seed: int, at: int, filter: str, options: dict[str, Any]) -> tuple[int, dict[str, Any], float]:
    """The attacker, the record of round `at`, in which it is visited first, and the loss at the end."""
    attacker = int(stream(seed, at, "shuffle").permutation(NODES)[0])
    grid, records = federation(app, NODES), []
    ones = altered(lambda arrays: {name: np.ones_like(array) for name, array in arrays.items()})
    grid.nodes[1000 + 17 * attacker].tamper = ones
    callbacks = [lambda record, state: records.append(record)]
    strategy = FilFL(
        FedAvg(fraction_evaluate=0.0),
        filter,
        k=3,
        h=1,
        seed=seed,
        evaluate=evaluate,
        options=options,
        callbacks=callbacks,
    )
    result = strategy.start(grid, initial(net), num_rounds=3, timeout=30.0)
    assert records[at - 1]["considered"][0] == attacker and not records[at - 1]["refused"]
    assert records[at - 1]["trace"][0]["client"] == attacker
    return attacker, records[at - 1], evaluate(result.arrays)


@pytest.mark.parametrize("at", [1, 2])
@pytest.mark.parametrize("seed", SEEDS)
def test_the_default_stops_it_and_zero_does_not(seed: int, at: int) -> None:
    attacker, record, lost = attacked(seed, at, "dgf", {"filter.empty": "zero"})
    assert attacker in record["filtered"] and len(record["filtered"]) < 5, "the average with any other node is worse"
    assert lost > 1.5

    attacker, record, loss = attacked(seed, at, "dgf", {})
    assert record["filtered"] and attacker not in record["filtered"]
    assert loss < 1.0


@pytest.mark.parametrize("seed", SEEDS)
def test_rgf_keeps_it_with_zero_only(seed: int) -> None:
    chance = [attacked(seed, 2, "rgf", options)[1]["trace"][0]["p"] for options in ({"filter.empty": "zero"}, {})]
    assert chance[0] > 0.5 and chance[1] == 0
