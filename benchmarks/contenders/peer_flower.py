"""Flower: its simulation runtime on Ray with one CPU per client, and its FedAvg strategy.

Flower runs its own loop. The evaluation on the server, which it calls between two rounds, waits for the next turn.
"""

import os
import sys
import tempfile

from protocol import Turns, arguments
from workloads import WORKLOADS


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="flower-") as home:
        compete(home)


def compete(home: str) -> None:
    workload = WORKLOADS[arguments().parse_args().workload]
    turns = Turns()
    os.environ |= {
        "PYTHONPATH": os.pathsep.join(sys.path),  # for the actors, which import the workloads
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "FLWR_HOME": home,
    }

    import logging
    import random

    from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    from torch_models import network, probe_loss

    logging.getLogger("flwr").setLevel(logging.ERROR)
    client, server = ClientApp(), ServerApp()

    @client.train()
    def train(message: Message, context: Context) -> Message:
        import torch
        from torch.nn import functional

        from torch_models import client_tensors, reused_network

        x, y = client_tensors(workload, int(context.node_config["partition-id"]))
        module = reused_network(workload)
        module.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
        optimiser = torch.optim.SGD(module.parameters(), lr=workload.lr)
        steps = seen = 0
        for _ in range(workload.epochs):
            for index in torch.randperm(len(y)).split(workload.batch):
                optimiser.zero_grad()
                functional.cross_entropy(module(x[index]), y[index]).backward()
                optimiser.step()
                steps += 1
                seen += len(index)
        metrics = MetricRecord({"num-examples": len(y), "steps": steps, "seen": seen})
        reply = RecordDict({"arrays": ArrayRecord(module.state_dict()), "metrics": metrics})
        return Message(content=reply, reply_to=message)

    class Stop(Exception):
        """Raised to end Flower's loop early: there is no other way."""

    totals = {"steps": 0, "seen": 0}

    def add_up(replies: list[RecordDict], weighted_by: str) -> MetricRecord:
        for reply in replies:
            for key in totals:
                totals[key] += int(str(reply.metric_records["metrics"][key]))
        return MetricRecord({})

    @server.main()
    def serve(grid: Grid, context: Context) -> None:
        module = network(workload)
        final = ArrayRecord(module.state_dict())

        def between_rounds(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
            nonlocal final
            final = arrays
            if server_round:
                turns.done()
            else:
                turns.ready()
            if not turns.wait():
                raise Stop
            return None

        strategy = FedAvg(
            fraction_train=workload.K / workload.N,
            fraction_evaluate=0.0,
            min_train_nodes=workload.K,
            min_available_nodes=workload.N,
            train_metrics_aggr_fn=add_up,
        )
        random.seed(0)
        try:
            strategy.start(grid, ArrayRecord(module.state_dict()), num_rounds=10**6, evaluate_fn=between_rounds)
        except Stop:
            module.load_state_dict(final.to_torch_state_dict())
            turns.stop(**totals, loss=probe_loss(workload, module))

    run_simulation(server, client, workload.N, backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}})


if __name__ == "__main__":
    main()
