"""Queries to clients: a new one is a class, which all executors, the meter, the guard and Flower clients handle."""

from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import filfl
from filfl.algorithms.fedavg import FedAvg
from filfl.config.sections import Training
from filfl.core.exchange import Exchange
from filfl.core.queries import QUERIES, GradientQuery, LossQuery, Query
from filfl.evaluation import Loss, Samples, cross_entropy, outputs
from filfl.simulation.build import network
from filfl.simulation.executors.processes import ProcessClients
from filfl.simulation.executors.serial import LocalTraining, SerialClients
from filfl.simulation.executors.vectorized import VectorizedClients
from filfl.system import Stopwatch
from filfl.weights import FlatModel, Layout, Mismatch, Weights

TRAINING = LocalTraining(0, FedAvg(), Training())


@dataclass(frozen=True)
class ErrorRateQuery(Query):
    """The share of a client's samples that the model classifies wrongly."""

    name: ClassVar[str] = "error-rate"

    def answer(self, model: FlatModel, weights: Weights, samples: Samples, loss: Loss) -> float:
        return float((outputs(model, weights, samples).argmax(dim=1) != samples.y).double().mean())

    def answer_on_flower(self, model: nn.Module, batches: Any, loss: Loss) -> float | None:
        wrong = [model(x).argmax(dim=1) != y for x, y in batches]
        return float(torch.cat(wrong).double().mean()) if wrong else None

    def num_bytes(self, layout: Layout) -> int:
        return 2

    def check(self, reply: float, layout: Layout) -> float:
        if not 0 <= reply <= 1:
            raise Mismatch(f"the error rate must be between 0 and 1 (got {reply})")
        return reply


def test_every_executor_answers_a_new_query_alike(blobs: filfl.FederatedData) -> None:
    build = partial(network, partial(nn.Linear, 4, 3), 0, torch.device("cpu"))
    net = build()
    w, ids, query = net.weights(), [3, 0, 8], ErrorRateQuery()
    serial = SerialClients(blobs, net, cross_entropy, TRAINING)
    expected = serial.query(query, ids, w)
    assert list(expected) == ids and len(set(expected.values())) > 1
    vectorized = VectorizedClients(blobs, net, cross_entropy, TRAINING, threads=1)
    assert vectorized.query(query, ids, w) == expected
    vectorized.close()
    with closing(ProcessClients(blobs, net, cross_entropy, TRAINING, build, workers=1)) as processes:
        assert processes.query(query, ids, w) == expected


class Scripted:
    """Clients with scripted replies."""

    num_clients = 3

    def query(self, query: Query, ids: Any, weights: Weights) -> dict[int, Any]:
        return {k: [0.25, 1.5, "many"][k] for k in ids}


def test_replies_are_counted_and_checked() -> None:
    layout = Layout.of(nn.Linear(4, 3))
    exchange = Exchange(1, layout.empty(), Scripted(), layout, Stopwatch())
    assert exchange.query(ErrorRateQuery(), [0, 1, 2]) == {0: 0.25}
    assert exchange.refused[1] == "the error rate must be between 0 and 1 (got 1.5)"
    assert exchange.refused[2].startswith("the reply cannot be read (TypeError")
    assert (exchange.downlink, exchange.uplink) == (3 * 4 * 15, 3 * 2)


def batches(x: Tensor, y: Tensor) -> list[tuple[Tensor, Tensor]]:
    return [(x[:5], y[:5]), (x[5:], y[5:])]


@pytest.mark.parametrize("query", [cls() for cls in QUERIES.values()], ids=list(QUERIES))
def test_a_flower_client_computes_what_a_simulated_one_does(query: Query) -> None:
    rng = np.random.default_rng(0)
    net = FlatModel(nn.Linear(4, 3), torch.device("cpu"))
    net.vector.copy_(torch.tensor(rng.normal(size=15)))
    x, y = torch.tensor(rng.normal(size=(8, 4)), dtype=torch.float32), torch.tensor(rng.integers(3, size=8))
    samples = Samples(x, y, torch.tensor(1.0), torch.tensor(0.0))
    simulated = torch.as_tensor(query.answer(net, net.weights(), samples, cross_entropy))
    reply = query.answer_on_flower(net.module, batches(x, y), cross_entropy)
    on_flower = torch.cat([part.flatten() for part in reply.values()]) if isinstance(reply, dict) else reply
    assert torch.as_tensor(on_flower).float().tolist() == pytest.approx(simulated.float().tolist(), rel=1e-4, abs=1e-6)


def test_losses_without_samples_are_unknown_and_gradients_zero() -> None:
    model = nn.Linear(4, 3)
    assert LossQuery().answer_on_flower(model, [], cross_entropy) is None
    assert all(not part.any() for part in GradientQuery().answer_on_flower(model, [], cross_entropy).values())
