"""A minimal FedAvg loop: one optimiser per client, batches by index, then the mean of the state dicts."""

import copy

from protocol import Turns, arguments
from workloads import WORKLOADS


def main() -> None:
    parser = arguments()
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    workload = WORKLOADS[given.workload]
    turns = Turns()

    import torch
    from torch.nn import functional

    from torch_models import network, probe_loss
    from workloads import all_samples, cohort

    torch.set_num_threads(given.threads)
    torch.manual_seed(0)
    module = network(workload)
    w_t = copy.deepcopy(module.state_dict())
    x, y = map(torch.from_numpy, all_samples(workload))
    xs, ys = x.split(workload.num_samples), y.split(workload.num_samples)
    turns.ready()
    t = steps = seen = 0
    while turns.wait():
        states = []
        for k in cohort(workload, t):
            module.load_state_dict(w_t)
            optimiser = torch.optim.SGD(module.parameters(), lr=workload.lr)
            for _ in range(workload.epochs):
                for index in torch.randperm(workload.num_samples).split(workload.batch):
                    optimiser.zero_grad()
                    functional.cross_entropy(module(xs[k][index]), ys[k][index]).backward()
                    optimiser.step()
                    steps += 1
                    seen += len(index)
            states.append(copy.deepcopy(module.state_dict()))
        w_t = {name: torch.stack([state[name] for state in states]).mean(dim=0) for name in w_t}
        t += 1
        turns.done()
    module.load_state_dict(w_t)
    turns.stop(steps=steps, seen=seen, loss=probe_loss(workload, module))


if __name__ == "__main__":
    main()
