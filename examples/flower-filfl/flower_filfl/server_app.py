"""The server: FedAvg with client filtering in front of it, into a run directory."""

from logging import INFO
from pathlib import Path

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.common import log
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from filfl.errors import ConfigError
from filfl.evaluation import accuracy, cross_entropy, score
from filfl.flower import FilFL, FilteringSet
from filfl.simulation.serial import samples_on
from flower_filfl.task import load_config, site_of

app = ServerApp()


def run_directory(out: str, run_id: int) -> Path:
    """Where the results go. The server runs in the SuperLink's folder, not in that of who typed `flwr run`."""
    path = Path(out or f"~/filfl-runs/flower-filfl-{run_id}").expanduser()
    if not path.is_absolute():
        raise ConfigError(
            f"out must be an absolute path (got {out!r}), since a relative one would lead to the folder of the "
            'SuperLink: write for example out="~/filfl-runs/mine"'
        )
    log(INFO, "The run directory is %s", path)
    return path


@app.main()
def main(grid: Grid, context: Context) -> None:
    settings = context.run_config
    config = load_config(settings)
    out = run_directory(str(settings["out"]), context.run_id)
    here = site_of(settings)  # the server has a network too, the filtering set and the test set
    V = here.data.with_filter_size(config.filter.size, config.seed)
    filtering_set = samples_on(here.net, here.data, V.filter_x, V.filter_y)
    test_set = samples_on(here.net, here.data, here.data.test_x, here.data.test_y)

    def test(t: int, arrays: ArrayRecord) -> MetricRecord:
        w = here.net.layout.flatten(arrays.to_torch_state_dict())
        loss, scores = score(here.net, w, test_set, cross_entropy, {"accuracy": accuracy})
        return MetricRecord({"loss": loss, **scores})

    strategy = FilFL(
        strategy=FedAvg(fraction_evaluate=0.0),
        config=config,
        evaluate=FilteringSet.of(here.net, here.new_module, filtering_set, cross_entropy),
        out=out,
        min_nodes=int(settings["min-nodes"]),
        wait=float(settings["wait"]),
    )
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(here.net.module.state_dict()),
        num_rounds=config.rounds,
        timeout=float(settings["timeout"]),
        evaluate_fn=test,
    )
