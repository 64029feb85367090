"""filfl: rounds of Algorithm 1 without a filter, on the executor of `execution.mode`."""

from typing import TYPE_CHECKING

from protocol import Turns, arguments
from workloads import WORKLOADS, Workload

if TYPE_CHECKING:
    from torch import nn


def filfl_network(workload: Workload) -> "nn.Module":
    """The workload's network as filfl builds it, with the same initial weights."""
    from filfl.models.cnn import LeafCNN
    from filfl.models.mlp import MLP
    from torch_models import network

    options = MLP() if workload.model == "mlp" else LeafCNN()
    module = options.build(workload.shape, workload.classes)
    module.load_state_dict(network(workload).state_dict())
    return module


def main() -> None:
    parser = arguments()
    parser.add_argument("--mode", default="auto")
    parser.add_argument("--workers", type=int)
    given = parser.parse_args()
    workload = WORKLOADS[given.workload]
    turns = Turns()

    from functools import partial

    from federation import equal_clients, federation
    from torch_models import probe_loss
    from workloads import all_samples

    table = {
        "selection": {"k": workload.K},
        "training": {"epochs": workload.epochs, "batch": workload.batch, "lr": workload.lr},
        "execution": {"mode": given.mode, "device": "cpu"} | ({"workers": given.workers} if given.workers else {}),
    }
    steps = seen = 0
    data = equal_clients(*all_samples(workload), workload.num_samples)
    with federation(table, data, partial(filfl_network, workload)) as simulation:
        turns.ready()
        while turns.wait():
            record = simulation.round()
            turns.done()
            assert not record.refused, record.refused
            clients = len(record.selected)
            steps += clients * workload.epochs * -(-workload.num_samples // workload.batch)
            seen += clients * workload.epochs * workload.num_samples
        simulation.net.load(simulation.state.w)
        executor = type(simulation.server.clients).__name__
        turns.stop(steps=steps, seen=seen, loss=probe_loss(workload, simulation.net.module), executor=executor)


if __name__ == "__main__":
    main()
