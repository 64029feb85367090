"""The server optimisers of filfl equal Flower's strategies."""

from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import strategy as flower
from flwr.supercore.task_identity import TaskIdentity

from filfl.aggregation import Admitted
from filfl.aggregation.fedavgm import FedAvgM
from filfl.aggregation.fedopt import FedAdam, FedYogi
from filfl.aggregation.server_optimizer import ServerOptimizer
from filfl.weights import Weights

TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
PAIRS: dict[str, tuple[ServerOptimizer, Any]] = {
    "fedavgm": (
        FedAvgM(eta=0.7, momentum=0.8, of="by-examples"),
        lambda: flower.FedAvgM(server_learning_rate=0.7, server_momentum=0.8),
    ),
    "fedavgm without momentum": (
        FedAvgM(eta=0.5, momentum=0.0, of="by-examples"),
        lambda: flower.FedAvgM(server_learning_rate=0.5),
    ),
    "fedadam": (
        FedAdam(eta=0.05, beta_1=0.8, beta_2=0.95, tau=0.01, of="by-examples"),
        lambda: flower.FedAdam(eta=0.05, beta_1=0.8, beta_2=0.95, tau=0.01),
    ),
    "fedadam by default": (FedAdam(of="by-examples"), flower.FedAdam),
    "fedyogi": (
        FedYogi(eta=0.05, beta_1=0.8, beta_2=0.95, tau=0.01, of="by-examples"),
        lambda: flower.FedYogi(eta=0.05, beta_1=0.8, beta_2=0.95, tau=0.01),
    ),
    "fedyogi by default": (FedYogi(of="by-examples"), flower.FedYogi),
}


def weights(vector: Any) -> Weights:
    return Weights(torch.as_tensor(vector, dtype=torch.float64), torch.empty(0, dtype=torch.int64))


def arrays(vector: Any) -> ArrayRecord:
    return ArrayRecord({"w": Array(np.asarray(vector))})


@pytest.mark.parametrize("name", PAIRS)
def test_several_rounds_equal_those_of_flower(name: str) -> None:
    """Updates of different sizes, also zero and with both signs, from clients with different numbers of examples."""
    ours, make = PAIRS[name]
    theirs, rng = make(), np.random.default_rng(0)
    w, memory, scales = rng.normal(size=40), {}, 10.0 ** rng.integers(-5, 2, size=40)
    scales[0] = 0.0
    our_w = weights(w)
    for t in range(1, 7):
        sent = [(w + scales * rng.normal(size=40), int(n)) for n in rng.integers(1, 50, size=4)]
        memory, our_w = ours(t, memory, our_w, [Admitted(weights(each), n, 0.0) for each, n in sent])
        replies = []
        for each, n in sent:
            content = RecordDict({"arrays": arrays(each), "metrics": MetricRecord({"num-examples": n})})
            replies.append(Message(content, dst_node_id=1, message_type="train"))
        theirs.current_arrays = arrays(w) if isinstance(theirs, flower.FedAvgM) else {"w": w}
        found, _ = theirs.aggregate_train(t, replies)
        w = found["w"].numpy()
        np.testing.assert_allclose(our_w.vector.numpy(), w, rtol=1e-9, atol=1e-12)
