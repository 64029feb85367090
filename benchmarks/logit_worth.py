"""When the logits transport pays off: what a filter round sends for several networks, and the m from which on it sends
more than with the models transport.

python benchmarks/logit_worth.py

Nothing is trained: the sizes follow from the networks. The script prints a Markdown table.
"""

from typing import NamedTuple

import torch

from filfl.core.metering import logit_reply_bytes, update_bytes
from filfl.logits.encoding import Encoding
from filfl.models import Model
from filfl.models.cnn import LeafCNN, SmallCNN
from filfl.models.lstm import LSTM
from filfl.models.mlp import MLP
from filfl.models.resnet import ResNet18
from filfl.report.formatting import markdown_rows
from filfl.weights import FlatModel

M = 500
"""Samples of V in the table."""
FORMS = (Encoding(), Encoding("int8"))


class World(NamedTuple):
    """A network with its data and the clients of a filter round."""

    model: Model
    sample: tuple[int, ...]
    classes: int
    n: int
    K: int


WORLDS = {
    "LEAF's CNN, FEMNIST": World(LeafCNN(), (1, 28, 28), 62, n=50, K=5),
    "ResNet-18, CIFAR-10": World(ResNet18(), (3, 32, 32), 10, n=50, K=5),
    "ResNet-18, 1,000 classes": World(ResNet18(), (3, 32, 32), 1000, n=50, K=5),
    "LSTM of 2 x 256, Shakespeare": World(LSTM(), (80,), 80, n=100, K=10),
    "CNN of the study, FEMNIST": World(SmallCNN(channels=(8, 16), hidden=64), (1, 28, 28), 62, n=50, K=5),
    "LSTM of the study, Shakespeare": World(LSTM(hidden=64, layers=1), (80,), 80, n=100, K=10),
    "MLP of 32, digits": World(MLP(hidden=(32,)), (64,), 10, n=10, K=3),
}


def table() -> list[str]:
    """The lines of the table."""
    rows = []
    for name, world in WORLDS.items():
        net = FlatModel(world.model.build(world.sample, world.classes), torch.device("cpu"))
        model = update_bytes(net.layout)
        sent = [world.n * model / 1e6, *(filter_round(world, model, form) / 1e6 for form in FORMS)]
        even = [break_even(world, model, form) for form in FORMS]
        rows.append([name, f"{net.layout.num_trained:,}", *(f"{mb:,.2f}" for mb in sent), *(f"{m:,}" for m in even)])
    head = ["network", "weights", "models, MB", "logits, MB", "int8, MB", "even at m", "int8"]
    return markdown_rows(head, rows)


def filter_round(world: World, model: int, form: Encoding, m: int = M) -> int:
    """Bytes that clients send in a filter round with the logits transport."""
    return world.n * logit_reply_bytes(form, (m, world.classes)) + world.K * model


def break_even(world: World, model: int, form: Encoding) -> int:
    """The largest m with which the logits transport sends no more than the models transport."""
    one = form.num_bytes((1, world.classes))
    budget = (world.n - world.K) * model - world.n * logit_reply_bytes(form, (0, world.classes))
    return budget // (world.n * one)


if __name__ == "__main__":
    print("\n".join(table()))
