"""pfl-research: `FederatedAveraging` on its `SimulatedBackend`, with tensors in memory.

A callback between two central iterations waits for the next turn.
"""

import logging
from typing import Any

from protocol import Turns, arguments
from workloads import WORKLOADS


def main() -> None:
    workload = WORKLOADS[arguments().parse_args().workload]
    turns = Turns()
    logging.disable(logging.WARNING)

    import numpy as np
    import torch
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByUser
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.pytorch import PyTorchTensorDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam import NNTrainHyperParams
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel
    from torch import nn

    from torch_models import network, probe_loss
    from workloads import all_samples

    class Module(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = network(workload)
            self.steps = self.seen = 0

        def loss(self, x: Any, y: Any) -> Any:
            self.steps += 1
            self.seen += len(y)
            return nn.functional.cross_entropy(self.layers(x), y)

        def metrics(self, x: Any, y: Any) -> dict[str, Any]:
            return {}

    class TakeTurns(TrainingProcessCallback):
        def on_train_begin(self, *, model: Any) -> Any:
            turns.ready()
            turns.wait()
            return Metrics()

        def after_central_iteration(self, aggregate_metrics: Any, model: Any, *, central_iteration: int) -> Any:
            turns.done()
            return not turns.wait(), Metrics()

    np.random.seed(0)
    torch.manual_seed(0)
    torch.set_num_threads(workload.threads)
    x, y = map(torch.from_numpy, all_samples(workload))
    parts = list(zip(x.split(workload.num_samples), y.split(workload.num_samples), strict=True))
    users = {k: PyTorchTensorDataset(part) for k, part in enumerate(parts)}
    module = Module()
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    data = FederatedDataset(users.__getitem__, get_user_sampler("minimize_reuse", list(users)))
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=10**6,
            evaluation_frequency=10**9,
            train_cohort_size=workload.K,
            val_cohort_size=None,
        ),
        SimulatedBackend(training_data=data, val_data=None, postprocessors=[WeightByUser()]),
        model,
        NNTrainHyperParams(
            local_learning_rate=workload.lr, local_num_epochs=workload.epochs, local_batch_size=workload.batch
        ),
        callbacks=[TakeTurns()],
        send_metrics_to_platform=False,
    )
    turns.stop(steps=module.steps, seen=module.seen, loss=probe_loss(workload, module.layers))


if __name__ == "__main__":
    main()
