"""The cost of FilFL on Flower, in ratios to FedAvg in the same simulation engine. Run it on an idle machine:

    python benchmarks/flower.py overhead
    python benchmarks/flower.py scale --clients 1000

overhead: FedAvg alone and wrapped in FilFL without a filter, with the 6.6 million parameters of LEAF's CNN. The ten
clients only send the model back, so that the time is that of the messages and of the server. Both alternate within one
Ray session.

scale: a thousand virtual clients that train, with and without filtering: seconds per round, and the peak of the
resident memory of all processes. Every arm runs in processes of its own. A round in which all clients train is compared
with FedAvg where all clients train, and any other round with FedAvg where K clients train.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import Tensor, nn

from filfl.flower import FilFL, FilteringSet, keep_weights
from filfl.models.cnn import LeafCNN
from measure import resident_memory

RESULTS = Path(__file__).parent / "results" / "flower.json"
NODES = 10
OFFLINE = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0"}

# The overhead of the server.


def echo_app() -> ClientApp:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        arrays = {name: Array(array.numpy() + 1e-3) for name, array in message.content.array_records["arrays"].items()}
        metrics = MetricRecord({"num-examples": 100, "train_loss": 1.0})
        return Message(RecordDict({"arrays": ArrayRecord(arrays), "metrics": metrics}), reply_to=message)

    return app


def overhead(turns: int) -> dict[str, Any]:
    results: dict[str, Any] = {}
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        arrays = ArrayRecord(LeafCNN().build((1, 28, 28), 62).state_dict())
        results["parameters"] = int(sum(np.prod(array.shape) for array in arrays.values()))
        strategies: dict[str, Callable[[], Any]] = {
            "FedAvg": lambda: FedAvg(fraction_evaluate=0.0, min_available_nodes=NODES),
            "FilFL around FedAvg": lambda: FilFL(
                FedAvg(fraction_evaluate=0.0), filter="none", k=NODES, identity="node", out=None
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

    run_simulation(app, echo_app(), num_supernodes=NODES)
    seconds = results["seconds per round"]
    plain, filtered = seconds["FedAvg"], seconds["FilFL around FedAvg"]
    ratios = [b / a for a, b in zip(plain, filtered, strict=True)]
    results["median"] = {name: round(statistics.median(times), 3) for name, times in seconds.items()}
    results["ratio"] = round(statistics.median(ratios), 3)
    return results


# A thousand clients.

FEATURES, CLASSES, SAMPLES, V_SIZE = 64, 10, 20, 100
PERIOD = 3
"""h: a filter round every three rounds."""
ARMS = {
    "FedAvg, K clients": "fedavg",
    "FilFL without a filter, K clients": "none",
    "FedAvg, all clients": "all",
    "FilFL, prune": "models",
    "FilFL, prune, logits": "logits",
}


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(FEATURES, 512), nn.ReLU(), nn.Linear(512, CLASSES))


def samples(seed: int, size: int) -> tuple[Tensor, Tensor]:
    """Ten Gaussian classes."""
    rng = np.random.default_rng(seed)
    y = rng.integers(CLASSES, size=size)
    x = rng.normal(size=(size, FEATURES)) + 2 * np.eye(CLASSES, FEATURES)[y]
    return torch.tensor(x, dtype=torch.float32), torch.tensor(y)


def training_app() -> ClientApp:
    """Clients that train one epoch. Every third one has random labels."""
    app = ClientApp(mods=[keep_weights(lambda context: network())])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)
        client = int(context.node_config["partition-id"])
        x, y = samples(1 + client, SAMPLES)
        if client % 3 == 0:
            y = y[torch.randperm(len(y), generator=torch.Generator().manual_seed(client))]
        model = network()
        model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for rows in torch.arange(SAMPLES).split(5):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
            loss.backward()
            optimizer.step()
        metrics = MetricRecord({"num-examples": SAMPLES, "train_loss": loss.item()})
        return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)

    return app


def strategy_of(arm: str, clients: int, k: int) -> Any:
    """The strategy of an arm. Nobody evaluates: the time is that of training and filtering."""
    if arm in ("fedavg", "all"):
        share = 1.0 if arm == "all" else k / clients
        return FedAvg(fraction_train=share, fraction_evaluate=0.0, min_available_nodes=clients)
    options = {} if arm != "logits" else {"filter.reward": "ensemble", "filter.transport": "logits"}
    return FilFL(
        FedAvg(fraction_evaluate=0.0),
        filter="none" if arm == "none" else "prune",
        k=k,
        h=PERIOD,
        evaluate=FilteringSet(network, *samples(0, V_SIZE), device="cpu"),
        options=options,
        min_nodes=clients,
        out=None,
    )


def run_arm(arm: str, clients: int, k: int, rounds: int) -> dict[str, Any]:
    """One arm, in this process: the seconds of each round, after one round that starts Ray and loads torch."""
    results: dict[str, Any] = {}
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        arrays = ArrayRecord(network().state_dict())
        results["bytes per model"] = sum(len(array.data) for array in arrays.values())
        strategy_of("fedavg", clients, k).start(grid, arrays, num_rounds=1)
        ends: list[float] = []

        def round_over(t: int, arrays: ArrayRecord) -> MetricRecord:
            ends.append(time.perf_counter())
            return MetricRecord({"round": t})

        strategy_of(arm, clients, k).start(grid, arrays, num_rounds=rounds, evaluate_fn=round_over)
        results["seconds"] = [round(b - a, 3) for a, b in pairwise(ends)]

    run_simulation(app, training_app(), clients, backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}})
    return results


def measured_arm(arm: str, clients: int, k: int, rounds: int) -> dict[str, Any]:
    """One arm in a process of its own, with the peak of the resident memory of all processes that it starts."""
    peak, over = 0, threading.Event()

    def sample() -> None:
        nonlocal peak
        while not over.wait(0.2):
            peak = max(peak, resident_memory())

    sampler = threading.Thread(target=sample)
    sampler.start()
    with tempfile.TemporaryDirectory() as home:
        command = [sys.executable, __file__, "arm", "--arm", arm, "--out", f"{home}/arm.json"]
        command += ["--clients", str(clients), "--k", str(k), "--rounds", str(rounds)]
        try:
            log = Path(home) / "log"
            with log.open("wb") as file:
                environment = {**os.environ, **OFFLINE, "FLWR_HOME": home}
                code = subprocess.run(command, env=environment, stdout=file, stderr=file, check=False).returncode
            if code:
                raise SystemExit(f"the arm {arm} failed\n{log.read_text()[-4000:]}")
            results: dict[str, Any] = json.loads((Path(home) / "arm.json").read_text())
        finally:
            over.set()
            sampler.join()
    return {**results, "peak MB": round(peak / 2**20)}


def scale(clients: int, k: int, rounds: int) -> dict[str, Any]:
    arms = {}
    for name, arm in ARMS.items():
        arms[name] = measured_arm(arm, clients, k, rounds)
        print(f"{name}: {arms[name]['seconds']} s, {arms[name]['peak MB']:,} MB", file=sys.stderr, flush=True)
    return {"clients": clients, "k": k, "h": PERIOD, "rounds": rounds, "arms": arms, "ratios": ratios_of(arms)}


def ratios_of(arms: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Each arm of FilFL against FedAvg with the same number of clients per round: rounds 1, 1 + h, ... train all."""
    some, everybody = (
        statistics.median(arms[name]["seconds"]) for name in ("FedAvg, K clients", "FedAvg, all clients")
    )
    found = {}
    for name in ("FilFL without a filter, K clients", "FilFL, prune", "FilFL, prune, logits"):
        seconds, filters = arms[name]["seconds"], "prune" in name
        first = seconds[::PERIOD] if filters else []
        rest = [s for i, s in enumerate(seconds) if not filters or i % PERIOD]
        against = "FedAvg, all clients" if filters else "FedAvg, K clients"
        found[name] = {
            **({"filter round": round(statistics.median(first) / everybody, 2)} if first else {}),
            **({"ordinary round": round(statistics.median(rest) / some, 2)} if rest else {}),
            "peak memory": round(arms[name]["peak MB"] / arms[against]["peak MB"], 2),
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("overhead", "scale", "arm"), help="arm: one arm of scale, called by it")
    parser.add_argument("--turns", type=int, default=15, help="overhead: measurements of each strategy")
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--k", type=int, default=50, help="scale: clients per ordinary round")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--arm", choices=list(ARMS.values()))
    parser.add_argument(
        "--out", type=Path, default=RESULTS, help="the JSON file with the numbers, by what was measured"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    size = (options.clients, options.k, options.rounds)
    if options.what == "arm":
        options.out.write_text(json.dumps(run_arm(options.arm, *size)))
        return
    results = overhead(options.turns) if options.what == "overhead" else scale(*size)
    print(json.dumps({key: value for key, value in results.items() if key != "seconds per round"}, indent=2))
    stored = json.loads(options.out.read_text()) if options.out.exists() else {}
    options.out.write_text(json.dumps({**stored, options.what: results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
