"""FedLab: its standalone pipeline with the server and the serial trainer of its FedAvg, one round per turn."""

import logging
import sys
from types import ModuleType
from typing import Any

from protocol import Turns, arguments
from workloads import WORKLOADS


def main() -> None:
    workload = WORKLOADS[arguments().parse_args().workload]
    turns = Turns()
    logging.disable(logging.INFO)

    # FedLab imports torchvision for datasets that are not used here.
    for name in ("torchvision", "torchvision.transforms", "torchvision.datasets"):
        sys.modules[name] = ModuleType(name)
    vars(sys.modules["torchvision"])["transforms"] = sys.modules["torchvision.transforms"]

    import random

    import torch
    from fedlab.contrib.algorithm.fedavg import FedAvgSerialClientTrainer, FedAvgServerHandler
    from fedlab.core.standalone import StandalonePipeline
    from torch.utils.data import DataLoader, TensorDataset

    from torch_models import network, probe_loss
    from workloads import all_samples

    class Data:
        """The interface of a federated dataset in FedLab."""

        def __init__(self) -> None:
            x, y = map(torch.from_numpy, all_samples(workload))
            parts = zip(x.split(workload.num_samples), y.split(workload.num_samples), strict=True)
            self.datasets = [TensorDataset(*part) for part in parts]

        def get_dataloader(self, id: int, batch_size: int) -> Any:
            return DataLoader(self.datasets[id], batch_size=batch_size, shuffle=True)

    class Pipeline(StandalonePipeline):
        def evaluate(self) -> None:
            turns.done()
            if not turns.wait():
                self.handler.global_round = self.handler.round

    steps = seen = 0

    def count(module: Any, inputs: Any) -> None:
        nonlocal steps, seen
        steps += 1
        seen += len(inputs[0])

    random.seed(0)
    torch.manual_seed(0)
    torch.set_num_threads(workload.threads)
    handler = FedAvgServerHandler(network(workload), global_round=10**6, sample_ratio=workload.K / workload.N)
    trainer = FedAvgSerialClientTrainer(network(workload), workload.N)
    trainer.setup_dataset(Data())
    trainer.setup_optim(workload.epochs, workload.batch, workload.lr)
    trainer.model.register_forward_pre_hook(count)
    pipeline = Pipeline(handler, trainer)
    turns.ready()
    if turns.wait():
        pipeline.main()
    turns.stop(steps=steps, seen=seen, loss=probe_loss(workload, handler.model))


if __name__ == "__main__":
    main()
