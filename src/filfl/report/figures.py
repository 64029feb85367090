"""Pictures of a comparison: accuracy, losses and S^f over the rounds, with bands over the seeds."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from filfl.report.styles import arm_places
from filfl.runs import Run

# Okabe and Ito's palette: told apart also by people who do not see all colours.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")


@dataclass(frozen=True)
class Curve:
    """What one picture shows of a run's records."""

    title: str
    of: Callable[[Mapping[str, Any], Run], float | None]
    from_zero: bool = False
    steps: bool = False


def _size_of_filtered(record: Mapping[str, Any], run: Run) -> float:
    return float(record["num_filtered"])


def _noisy_share(record: Mapping[str, Any], run: Run) -> float | None:
    noisy = run.clients.noisy[run.may_be_chosen(record)]
    return 100 * float(noisy.mean()) if len(noisy) else None


CURVES = {
    "accuracy": Curve("Test accuracy", lambda record, run: record["test_accuracy"]),
    "test-loss": Curve("Test loss", lambda record, run: record["test_loss"]),
    "train-loss": Curve("Train loss", lambda record, run: record["train_loss"]),
    "filtered": Curve("Clients in $S^f$", _size_of_filtered, from_zero=True, steps=True),
    "noisy": Curve("Random labels in $S^f$ (% of its clients)", _noisy_share, from_zero=True, steps=True),
}


def draw_comparison(
    runs: Mapping[str, Sequence[Run]], against: Mapping[str, str], title: str, directory: Path
) -> list[Path]:
    """One PNG a curve, and one with the most telling side by side; the paths, the last one first."""
    names = [
        name
        for name in CURVES
        if name != "noisy" or any(run.clients.noisy.any() for seeds in runs.values() for run in seeds)
    ]
    paths = [_figure([name], runs, against, title, directory / f"{name}.png") for name in names]
    telling = [name for name in names if name != "train-loss"]
    return [_figure(telling, runs, against, title, directory / "comparison.png"), *paths]


def _figure(
    names: Sequence[str], runs: Mapping[str, Sequence[Run]], against: Mapping[str, str], title: str, path: Path
) -> Path:
    styles = arm_styles(list(runs), against)
    columns = 2 if len(names) == 4 else len(names)
    rows = len(names) // columns
    figure = Figure(figsize=(5.6 * columns, 3.9 * rows + 0.6), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).flatten()
    for axis, name in zip(axes, names, strict=True):
        for arm, seeds in runs.items():
            _draw(axis, CURVES[name], seeds, arm, styles[arm])
        axis.set_title(CURVES[name].title, fontsize=11)
        axis.set_xlabel("Round")
        if CURVES[name].from_zero:
            axis.set_ylim(bottom=0)
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 3 * columns), frameon=False)
    figure.suptitle(title, fontsize=12 if columns > 1 else 10, wrap=True)
    figure.savefig(path, dpi=150)
    return path


def arm_styles(arms: Sequence[str], against: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """A colour and a line for every arm: those tested against one arm share its kind of line."""
    lines = ("-", "--", ":", "-.")
    places = arm_places(arms, against)
    return {arm: (COLOURS[i % len(COLOURS)], lines[j % len(lines)]) for arm, (i, j) in places.items()}


def _draw(axis: Axes, curve: Curve, seeds: Sequence[Run], label: str, style: tuple[str, str]) -> None:
    colour, line = style
    values: dict[int, list[float]] = defaultdict(list)
    for run in seeds:
        for record in run.records:
            if (value := curve.of(record, run)) is not None:
                values[record["round"]].append(value)
    rounds = sorted(values)
    mean = np.array([np.mean(values[t]) for t in rounds])
    std = np.array([np.std(values[t], ddof=1) if len(values[t]) > 1 else 0.0 for t in rounds])
    if curve.steps and rounds:  # the last round is as wide as the others
        rounds, mean, std = [*rounds, rounds[-1] + 1], np.append(mean, mean[-1]), np.append(std, std[-1])
    drawn = "steps-post" if curve.steps else "default"
    axis.plot(rounds, mean, line, color=colour, label=label, linewidth=1.7, drawstyle=drawn)
    step: Literal["post"] | None = "post" if curve.steps else None
    low = np.maximum(mean - std, 0) if curve.from_zero else mean - std
    axis.fill_between(rounds, low, mean + std, color=colour, alpha=0.14, linewidth=0, step=step)
