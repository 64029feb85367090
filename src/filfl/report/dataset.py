"""A description of a federated dataset: a few numbers, and a plot of the labels per client."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from filfl.data import FederatedData

SHOWN = 60
"""The plot shows at most this many clients, the largest ones."""
MOST_NAMES = 40
"""The plot names at most this many clients or classes on an axis."""
LONGEST = 16
"""The characters of a name in the plot."""


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
    from matplotlib.figure import Figure

    counts = label_counts(data)
    largest = np.argsort(-counts.sum(axis=1), kind="stable")[:SHOWN]
    figure = Figure(figsize=(10, 4.6), layout="constrained")
    axis = figure.subplots()
    image = axis.imshow(counts[largest].T, aspect="auto", cmap="viridis", interpolation="nearest", origin="lower")
    all_clients = len(largest) == data.num_clients
    axis.set_xlabel("Client" if all_clients else f"The {SHOWN} largest of {data.num_clients} clients")
    axis.set_ylabel("Label")
    if len(largest) <= MOST_NAMES and data.names.dtype.kind == "U":
        axis.set_xticks(range(len(largest)), [_short(name) for name in data.names[largest]], rotation=90, fontsize=8)
    if 0 < len(data.class_names) <= MOST_NAMES:
        axis.set_yticks(range(data.classes), [_short(name) for name in data.class_names], fontsize=8)
    axis.set_title(title, fontsize=11)
    figure.colorbar(image, ax=axis, label="Samples")
    figure.savefig(path, dpi=150)
    return path


def _short(name: object) -> str:
    """A name as a label of a plot, in which a dollar sign would start a formula."""
    text = _printable(name)
    return (text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…").replace("$", r"\$")


def _printable(name: object) -> str:
    """A name that can be written: it may contain half of a surrogate pair."""
    return str(name).encode("utf-8", "replace").decode("utf-8")
