"""`filfl data`: a dataset in numbers, and a plot of its labels."""

import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from filfl.commands.terminal import console, print_json, say
from filfl.config.experiment import Experiment
from filfl.data import FederatedData
from filfl.report.dataset import draw_labels, facts, label_counts, label_skew
from filfl.runs.files import cannot_write
from filfl.simulation.result import NEEDS_MATPLOTLIB, can_draw


def data_command(name: str, changes: Mapping[str, Any], picture: Path, as_json: bool) -> None:
    # The smallest k: the default one may be larger than the number of clients of a small dataset.
    config = Experiment({"selection": {"k": 1}}).config({"data.name": name, **changes})
    config.require_objects()
    dataset = config.data.load(config.seed)
    described = facts(dataset)
    width = max(map(len, described))
    say(name, style="bold")
    for fact, value in described.items():
        hanging = " " * (width + 4)
        say(textwrap.fill(f"  {fact:{width}s}  {value}", console.width, subsequent_indent=hanging))
    drawn = None
    if dataset.classes and not can_draw():
        say(f"picture  none: it {NEEDS_MATPLOTLIB}")
    elif dataset.classes:
        try:
            drawn = draw_labels(dataset, f"{name}: samples of every label on every client", picture)
        except OSError as error:
            raise cannot_write(picture, error) from None
        say(f"picture  {picture}")
    if as_json:
        print_json(table(name, dataset) | {"picture": str(drawn) if drawn else None})


def table(name: str, data: FederatedData) -> dict[str, Any]:
    """The JSON object."""
    sizes = np.diff(data.offsets)
    return {
        "name": name,
        "clients": data.num_clients,
        "clients_with_random_labels": int(data.noisy.sum()),
        "samples": int(sizes.sum()),
        "samples_per_client": {"min": int(sizes.min()), "median": float(np.median(sizes)), "max": int(sizes.max())},
        "sample_shape": list(data.sample_shape),
        "dtype": str(data.x.dtype),
        "classes": data.classes or None,
        "filtering_set": {"samples": len(data.filter_y), "from": data.filter_from},
        "test_set": {"samples": len(data.test_y), "from": data.test_from},
        "label_skew": label_skew(label_counts(data)) if data.classes else None,
    }
