"""The server: FedAvg wrapped in client filtering. It writes a run directory."""

from logging import INFO
from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.common import log
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from torch.nn import functional

from filfl import FilflError
from filfl.flower import FilFL, FilteringSet
from flower_parity.task import task_of

app = ServerApp()


def run_directory(out: str, run_id: int) -> Path:
    """Where the results go. The server runs in the folder of the SuperLink, not in the folder of `flwr run`."""
    path = Path(out or f"~/filfl-runs/flower-parity-{run_id}").expanduser()
    if not path.is_absolute():
        raise FilflError(
            f"out must be an absolute path (got {out!r}), since a relative one would be in the folder of the "
            'SuperLink: write for example out="~/filfl-runs/mine"'
        )
    log(INFO, "The run directory is %s", path)
    return path


@app.main()
def main(grid: Grid, context: Context) -> None:
    settings = context.run_config
    out = run_directory(str(settings["out"]), context.run_id)
    task = task_of(settings)
    config = task.config
    V = task.data.with_filter_size(config.filter.size, config.seed, config.filter.classes)
    x, y = task.tensors(task.data.test_x, task.data.test_y)
    model = task.initial_network()

    def test(t: int, arrays: ArrayRecord) -> MetricRecord:
        model.load_state_dict(arrays.to_torch_state_dict())
        with torch.no_grad():
            outputs = model(x)
        accuracy = (outputs.argmax(dim=1) == y).double().mean()
        return MetricRecord({"loss": functional.cross_entropy(outputs, y).item(), "accuracy": accuracy.item()})

    strategy = FilFL(
        strategy=FedAvg(fraction_evaluate=0.0),
        config=config,
        evaluate=FilteringSet(
            task.network, V.filter_x, V.filter_y, device="cpu", scale=task.data.scale, shift=task.data.shift
        ),
        out=out,
        min_nodes=int(settings["min-nodes"]),
        wait=float(settings["wait"]),
    )
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(model.state_dict()),
        num_rounds=config.rounds,
        timeout=float(settings["timeout"]),
        evaluate_fn=test,
    )
