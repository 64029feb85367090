"""flower-filfl: the server. FedAvg, wrapped in client filtering."""

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from filfl.flower import FilFL, FilteringSet
from flower_filfl.task import Net, load_server_data, test

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    filtering_set, test_set = load_server_data()
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")

    def global_evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        model = Net()
        model.load_state_dict(arrays.to_torch_state_dict())
        loss, accuracy = test(model, test_set, device)
        return MetricRecord({"loss": loss, "accuracy": accuracy})

    torch.manual_seed(0)
    arrays = ArrayRecord(Net().state_dict())
    strategy = FilFL(
        FedAvg(fraction_evaluate=float(config["fraction-evaluate"])),
        filter=str(config["filter"]),
        k=int(config["k"]),
        h=int(config["h"]),
        evaluate=FilteringSet(Net, filtering_set),
        out=str(config["out"]) or f"~/filfl-runs/{context.run_id}",
    )
    strategy.start(
        grid=grid,
        initial_arrays=arrays,
        train_config=ConfigRecord({"lr": float(config["learning-rate"])}),
        num_rounds=int(config["num-server-rounds"]),
        evaluate_fn=global_evaluate,
    )
