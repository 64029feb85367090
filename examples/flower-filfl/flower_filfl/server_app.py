"""The server: FedAvg with client filtering in front of it, into a run directory."""

from pathlib import Path

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from filfl.evaluation import accuracy, cross_entropy, score
from filfl.flower import FilFL, FilteringSet
from filfl.simulation.serial import samples_on
from flower_filfl.task import load_config, site_of

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    settings = context.run_config
    config = load_config(settings)
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
        out=Path(str(settings["out"]) or f"runs/flower-filfl-{context.run_id}"),
        wait=float(settings["wait"]),
    )
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(here.net.module.state_dict()),
        num_rounds=config.rounds,
        timeout=float(settings["timeout"]),
        evaluate_fn=test,
    )
