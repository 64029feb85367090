"""The cost of FilFL's server side on Flower: FedAvg alone and wrapped in FilFL, in one run of the simulation engine.

The model has the 6.6 million parameters of LEAF's CNN. The ten clients only send it back, so that the time is that of
the messages and of the server. The two strategies alternate within one Ray session. Run it on an idle machine:

    python benchmarks/flower.py
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from filfl.flower import FilFL
from filfl.models.cnn import LeafCNN

NODES = 10


def client_app() -> ClientApp:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        arrays = {name: Array(array.numpy() + 1e-3) for name, array in message.content.array_records["arrays"].items()}
        metrics = MetricRecord({"num-examples": 100, "train_loss": 1.0})
        return Message(RecordDict({"arrays": ArrayRecord(arrays), "metrics": metrics}), reply_to=message)

    return app


def server_app(turns: int, results: dict[str, Any]) -> ServerApp:
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        arrays = ArrayRecord(LeafCNN().build((1, 28, 28), 62).state_dict())
        results["parameters"] = int(sum(np.prod(array.shape) for array in arrays.values()))
        strategies: dict[str, Callable[[], Any]] = {
            "FedAvg": lambda: FedAvg(fraction_evaluate=0.0, min_available_nodes=NODES),
            "FilFL around FedAvg": lambda: FilFL(
                FedAvg(fraction_evaluate=0.0), filter="none", k=NODES, identity="node"
            ),
        }
        for make in strategies.values():  # start Ray before anything is measured
            make().start(grid, arrays, num_rounds=1)
        seconds: dict[str, list[float]] = {name: [] for name in strategies}
        for turn in range(turns):
            order = list(strategies) if turn % 2 == 0 else list(reversed(strategies))
            for name in order:
                start = time.perf_counter()
                strategies[name]().start(grid, arrays, num_rounds=2)
                seconds[name].append((time.perf_counter() - start) / 2)
        results["seconds per round"] = seconds

    return app


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--out", type=Path, default=None, help="write the numbers to this JSON file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    results: dict[str, Any] = {}
    run_simulation(server_app(options.turns, results), client_app(), num_supernodes=NODES)
    seconds = results["seconds per round"]
    plain, filtered = seconds["FedAvg"], seconds["FilFL around FedAvg"]
    ratios = [b / a for a, b in zip(plain, filtered, strict=True)]
    results["median"] = {name: round(statistics.median(times), 3) for name, times in seconds.items()}
    results["ratio"] = round(statistics.median(ratios), 3)
    print(json.dumps({key: value for key, value in results.items() if key != "seconds per round"}, indent=2))
    if options.out:
        options.out.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
