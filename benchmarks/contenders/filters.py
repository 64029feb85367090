"""Filters: Algorithm 2 in filfl, and a straightforward implementation of it. One round is one filtering."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from protocol import Turns

if TYPE_CHECKING:
    from torch import Tensor, nn

    from problems import Problem


def main() -> None:
    import argparse
    from dataclasses import replace
    from functools import partial

    parser = argparse.ArgumentParser()
    parser.add_argument("case")
    parser.add_argument("who", choices=["naive", "dgf", "local-search"])
    parser.add_argument("--loader-workers", type=int, default=0)
    parser.add_argument("--precision", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    turns = Turns()

    import limits
    from problems import CASES, CNN_FLOP, problem, with_size

    case = with_size(given.case, n=6, m=40) if given.quick else CASES[given.case]
    made = problem(replace(case, precision=given.precision))
    runs: dict[str, Callable[[], dict[str, Any]]] = {
        "naive": partial(naive_dgf, made, given.loader_workers),
        "dgf": made.dgf,
        "local-search": made.local_search,
    }
    run = runs[given.who]
    turns.ready()
    result: dict[str, Any] = {}
    rates: list[float] = []
    at_the_peak = case.model == "cnn" and given.who == "dgf" and given.precision == "float32"

    def measure_rate() -> None:
        """Measure the current speed of the machine."""
        if at_the_peak:
            rates.append(limits.sustained(0.1 if given.quick else 5.0))

    while turns.wait(before=measure_rate):
        result = run()
        turns.done()
        measure_rate()
    if at_the_peak:
        flop = result["evaluations"] * case.m * CNN_FLOP
        result |= {"flop": flop, "matrix_gflops": sum(rates) / len(rates)}
    turns.stop(**result, stack_bytes=made.stack.nbytes)


def naive_dgf(made: "Problem", loader_workers: int) -> dict[str, Any]:
    """A straightforward DGF: each set is averaged from state dicts and evaluated batch by batch."""
    import copy

    import torch
    from torch.nn import functional
    from torch.utils.data import DataLoader, TensorDataset

    module = _with_torch_pooling(made.net.module)
    states = {k: _state_dict(made, row) for k, row in enumerate(made.stack)}
    data = TensorDataset(made.V.samples.x, made.V.samples.y)
    evaluations = 0

    def average(clients: list[int]) -> dict[str, Any]:
        mean = copy.deepcopy(states[clients[0]])
        for name in mean:
            for k in clients[1:]:
                mean[name] += states[k][name]
            mean[name] = mean[name] / len(clients)
        return mean

    def reward(clients: list[int]) -> float:
        nonlocal evaluations
        if not clients:
            return 0.0
        evaluations += 1
        module.load_state_dict(average(clients))
        module.eval()
        total = 0.0
        with torch.no_grad():
            for x, y in DataLoader(data, batch_size=16, num_workers=loader_workers):
                total += functional.cross_entropy(module(x), y, reduction="sum").item()
        return 10 - total / len(data)

    X: list[int] = []
    Y = made.clients
    R_X, R_Y = reward(X), reward(Y)
    for u in made.clients:
        with_u, without_u = sorted([*X, u]), [k for k in Y if k != u]
        R_with, R_without = reward(with_u), reward(without_u)
        if R_with - R_X > R_without - R_Y:
            X, R_X = with_u, R_with
        else:
            Y, R_Y = without_u, R_without
    return {"kept": X, "evaluations": evaluations}


def _with_torch_pooling(module: "nn.Module") -> "nn.Module":
    """The network with torch's pooling instead of filfl's own."""
    from torch import nn

    from filfl.models.cnn import Halve

    if not isinstance(module, nn.Sequential):
        return module
    return nn.Sequential(*(nn.MaxPool2d(2) if isinstance(layer, Halve) else layer for layer in module))


def _state_dict(made: "Problem", row: "Tensor") -> dict[str, Any]:
    from filfl.weights import Weights

    return made.net.layout.unflatten(Weights(row, made.w_t.integers))


if __name__ == "__main__":
    main()
