"""How much the logits of the same weights differ between machines: the reason for `filfl.logits.ARITHMETIC`.

python benchmarks/logit_arithmetic.py

A few clients train. Their weights are evaluated on the filtering set with the arithmetic of other machines. The first
table has the largest difference over all samples, relative to the largest output of the sample (to 1 if that is
smaller). Its last column compares two clients by their most different sample; it is the smallest value of all pairs.
The second table has the difference in mean loss, relative to the loss (to 1 if that is smaller), over the first samples
and over all of them: the reason for `filfl.logits.LOSS_TOLERANCE`. The script prints Markdown tables.
"""

from collections.abc import Callable
from itertools import combinations
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

from filfl.config.experiment import Experiment
from filfl.errors import FilflError
from filfl.evaluation import Samples, cross_entropy
from filfl.logits.check import ARITHMETIC, LOSS_TOLERANCE
from filfl.report.formatting import markdown_rows
from filfl.simulation.build import network
from filfl.simulation.executors.serial import LocalTraining, SerialClients, samples_on
from filfl.weights import FlatModel, Weights
from problems import uploads

WORLDS: dict[str, tuple[str, dict[str, Any]]] = {
    "MLP, MNIST-5k": ("demo", {}),
    "small CNN, FEMNIST": ("poc-femnist", {}),
    "LEAF's CNN, FEMNIST": ("femnist", {"model.name": "leaf-cnn", "training.epochs": 1}),
    "LSTM, Shakespeare": ("poc-shakespeare", {}),
}
CLIENTS = 4
SAMPLES = 100
FEW = 20
"""The mean loss is also computed over this many samples: over fewer samples, rounding cancels out less."""


@torch.no_grad()
def run(
    net: FlatModel,
    weights: Weights,
    V: Samples,
    batch: int = 100,
    dtype: torch.dtype = torch.float32,
    cut: Callable[[Tensor], Tensor] = lambda x: x,
) -> Tensor:
    """The outputs of these weights, in batches of this size and in this type; `cut` rounds weights and inputs."""
    state = {name: cut(value).to(dtype) for name, value in net.layout.unflatten(weights).items()}
    inputs = V.inputs(V.x)
    inputs = cut(inputs).to(dtype) if inputs.is_floating_point() else inputs
    net.module.eval()
    parts = [functional_call(net.module, state, (inputs[i : i + batch],)) for i in range(0, len(inputs), batch)]
    return torch.cat(parts).double()


def ten_bits(x: Tensor) -> Tensor:
    """Round as TF32 does: a mantissa of ten bits."""
    return ((x.contiguous().view(torch.int32) + (1 << 12)) & ~((1 << 13) - 1)).view(torch.float32)


def apart(one: Tensor, other: Tensor) -> float:
    return float(((one - other).abs() / one.abs().amax(dim=1, keepdim=True).clamp(min=1.0)).max())


def loss_apart(one: Tensor, other: Tensor, y: Tensor) -> float:
    true, claimed = float(cross_entropy(one, y)), float(cross_entropy(other, y))
    return abs(true - claimed) / max(1.0, true)


def measured(name: str, changes: dict[str, Any]) -> tuple[list[str], list[str]]:
    config = Experiment.load(name).config(changes)
    data = config.data.load(0).with_filter_size(SAMPLES, 0)
    net = network(lambda: config.model.build(data.sample_shape, data.classes), 0, torch.device("cpu"))
    V = samples_on(net, data, data.filter_x, data.filter_y).aligned()
    training = LocalTraining(0, config.algorithm, config.training)
    updates = SerialClients(data, net, cross_entropy, training).train(1, list(range(CLIENTS)), net.weights())
    weights = list(uploads(updates).values())
    plain = [run(net, w, V) for w in weights]

    def worst(**how: Any) -> float:
        return max(apart(one, run(net, w, V, **how)) for one, w in zip(plain, weights, strict=True))

    torch.set_num_threads(2)
    two_threads = worst()
    torch.set_num_threads(1)
    found = [
        two_threads,
        worst(batch=7),
        worst(batch=1),
        worst(dtype=torch.float64),
        worst(cut=ten_bits),
        worst(dtype=torch.bfloat16),
        min(apart(one, other) for one, other in combinations(plain, 2)),
    ]
    losses = [
        max(loss_apart(one[:m], run(net, w, V, **how)[:m], V.y[:m]) for one, w in zip(plain, weights, strict=True))
        for how in ({"cut": ten_bits}, {"dtype": torch.bfloat16})
        for m in (FEW, SAMPLES)
    ]
    others = [loss_apart(one, other, V.y) for one, other in combinations(plain, 2)]
    return [f"{value:.1e}" for value in found], [f"{value:.1e}" for value in (*losses, min(others), max(others))]


def main() -> None:
    torch.set_num_threads(1)
    rows, losses = [], []
    for title, (name, changes) in WORLDS.items():
        try:
            outputs, loss = measured(name, changes)
            rows.append([title, *outputs])
            losses.append([title, *loss])
        except FilflError as error:
            rows.append([title, str(error)])
    headings = ["", "2 threads", "batches of 7", "of 1", "float64", "TF32", "bfloat16", "another client"]
    print("\n".join(markdown_rows(headings, rows)))
    print(f"\nallowed: {ARITHMETIC:g}\n")
    ways = [f"{way}, {m} samples" for way in ("TF32", "bfloat16") for m in (FEW, SAMPLES)]
    print("\n".join(markdown_rows(["mean loss", *ways, "another client, smallest", "largest"], losses)))
    print(f"\nallowed: {LOSS_TOLERANCE:g}")


if __name__ == "__main__":
    main()
