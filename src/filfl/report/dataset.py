"""A description of a federated dataset: a few numbers, and a plot of the labels per client."""

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from filfl.data import FederatedData

SHOWN = 60
"""The plot shows at most this many clients, the largest ones."""


def label_counts(data: FederatedData) -> NDArray[np.int64]:
    """Samples per client and class, training and validation together: [clients, classes]."""
    owners = np.repeat(np.arange(data.num_clients), np.diff(data.offsets))
    flat = np.bincount(owners * data.classes + data.y.astype(np.int64), minlength=data.num_clients * data.classes)
    return flat.reshape(data.num_clients, data.classes)


def label_skew(counts: NDArray[np.int64]) -> float:
    """The mean total variation distance between a client's label distribution and that of all clients: 0 if all are
    equal, close to 1 if every client has one or two classes of many."""
    shares = counts / counts.sum(axis=1, keepdims=True)
    return float(0.5 * np.abs(shares - counts.sum(axis=0) / counts.sum()).sum(axis=1).mean())


def facts(data: FederatedData) -> dict[str, str]:
    """What `filfl data` prints about a dataset."""
    lines = data.facts()
    if data.classes:
        lines["label skew"] = (
            f"{label_skew(label_counts(data)):.2f} (0: equal label distributions, 1: no class in common)"
        )
    return lines


def draw_labels(data: FederatedData, title: str, path: Path) -> Path:
    """A PNG with the number of samples per label and client, the largest clients first."""
    counts = label_counts(data)
    largest = np.argsort(-counts.sum(axis=1), kind="stable")[:SHOWN]
    figure = Figure(figsize=(10, 4.6), layout="constrained")
    axis = figure.subplots()
    image = axis.imshow(counts[largest].T, aspect="auto", cmap="viridis", interpolation="nearest", origin="lower")
    all_clients = len(largest) == data.num_clients
    axis.set_xlabel("Client" if all_clients else f"The {SHOWN} largest of {data.num_clients} clients")
    axis.set_ylabel("Label")
    axis.set_title(title, fontsize=11)
    figure.colorbar(image, ax=axis, label="Samples")
    figure.savefig(path, dpi=150)
    return path
