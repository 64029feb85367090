"""Pictures of a comparison: accuracy, loss and the size of S^f over the rounds, with bands over the seeds."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

Records = Sequence[Mapping[str, Any]]

# Okabe and Ito's palette: told apart also by people who do not see all colours.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")


@dataclass(frozen=True)
class Curve:
    """What one picture shows of a record."""

    key: str
    title: str
    low: float | None = None
    steps: bool = False

    def of(self, record: Mapping[str, Any]) -> float | None:
        value = record[self.key]
        return float(len(value)) if isinstance(value, list) else value


CURVES = {
    "accuracy": Curve("test_accuracy", "Test accuracy"),
    "test-loss": Curve("test_loss", "Test loss"),
    "train-loss": Curve("train_loss", "Train loss"),
    "filtered": Curve("filtered", "Clients in $S^f$", low=0.0, steps=True),
}


def draw_comparison(
    runs: Mapping[str, Sequence[Records]], against: Mapping[str, str], title: str, directory: Path
) -> list[Path]:
    """One PNG a curve, and one with accuracy, test loss and S^f side by side; the paths, the last one first."""
    paths = [_figure([name], runs, against, title, directory / f"{name}.png") for name in CURVES]
    together = _figure(["accuracy", "test-loss", "filtered"], runs, against, title, directory / "comparison.png")
    return [together, *paths]


def _figure(
    names: Sequence[str],
    runs: Mapping[str, Sequence[Records]],
    against: Mapping[str, str],
    title: str,
    path: Path,
) -> Path:
    styles = arm_styles(list(runs), against)
    figure = Figure(figsize=(5.2 * len(names) + 0.4, 4.4), layout="constrained")
    axes = figure.subplots(1, len(names), squeeze=False)[0]
    for axis, name in zip(axes, names, strict=True):
        for arm, seeds in runs.items():
            _draw(axis, CURVES[name], seeds, arm, styles[arm])
        axis.set_title(CURVES[name].title, fontsize=11)
        axis.set_xlabel("Round")
        axis.set_ylim(bottom=CURVES[name].low)
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 2 * len(names)), frameon=False)
    figure.suptitle(title, fontsize=12)
    figure.savefig(path, dpi=150)
    return path


def arm_styles(arms: Sequence[str], against: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """A colour and a line for every arm: those tested against one arm share its kind of line."""
    lines = ("-", "--", ":", "-.")
    bases = list(dict.fromkeys(against[arm] for arm in arms))
    place = {base: [arm for arm in arms if against[arm] == base] for base in bases}
    return {
        arm: (
            COLOURS[place[against[arm]].index(arm) % len(COLOURS)],
            lines[bases.index(against[arm]) % len(lines)],
        )
        for arm in arms
    }


def _draw(axis: Axes, curve: Curve, seeds: Sequence[Records], label: str, style: tuple[str, str]) -> None:
    colour, line = style
    values: dict[int, list[float]] = defaultdict(list)
    for record in [record for records in seeds for record in records]:
        if (value := curve.of(record)) is not None:
            values[record["round"]].append(value)
    rounds = sorted(values)
    mean = np.array([np.mean(values[t]) for t in rounds])
    std = np.array([np.std(values[t], ddof=1) if len(values[t]) > 1 else 0.0 for t in rounds])
    drawn = "steps-post" if curve.steps else "default"
    axis.plot(rounds, mean, line, color=colour, label=label, linewidth=1.7, drawstyle=drawn)
    step: Literal["post"] | None = "post" if curve.steps else None
    axis.fill_between(rounds, mean - std, mean + std, color=colour, alpha=0.14, linewidth=0, step=step)
