"""Plots of a comparison: curves over the rounds, bars and heat maps of final values, and these against upload."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter
from matplotlib.transforms import Bbox
from numpy.typing import NDArray

from filfl.report.measures import measure_named
from filfl.report.series import Curve, Series, curve_named

# Okabe and Ito's palette, which colour-blind readers can distinguish.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
LINES = ("-", "--", ":", "-.")
STYLE: dict[Any, Any] = {
    "axes.grid": True,
    "grid.alpha": 0.25,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 11,
    "legend.frameon": False,
}
NEAR = 12
"""A label farther than this from its point, in typographic points, is joined to it by a line."""

Drawn = Mapping[str, Mapping[str, Series]]
"""Arm -> name of the curve -> series."""


def draw_comparison(drawn: Drawn, against: Mapping[str, str], title: str, directory: Path) -> list[Path]:
    """One PNG per curve, and comparison.png with the four most important ones, whose path comes first."""
    names = _names(drawn)
    paths = [
        draw_curves([name], drawn, against, title, directory / f"{re.sub(r'[^A-Za-z0-9_.-]', '_', name)}.png")
        for name in names
    ]
    shown = main_curves(drawn)
    main = [draw_curves(shown, drawn, against, title, directory / "comparison.png")] if shown else []
    return main + paths


def main_curves(drawn: Drawn) -> list[str]:
    """The names of the four most important curves."""
    return [name for name in _names(drawn) if name not in ("selected-train-loss", "gain", "gain-on-v")][:4]


def _names(drawn: Drawn) -> list[str]:
    return list(dict.fromkeys(name for series in drawn.values() for name in series))


def draw_curves(
    names: Sequence[str], drawn: Drawn, against: Mapping[str, str], title: str, path: Path, dpi: int = 150
) -> Path:
    """A PNG with one panel per curve."""
    figure = Figure()
    draw_panels(figure, names, drawn, against, title)
    with rc_context(STYLE):
        figure.savefig(path, dpi=dpi)
    return path


@rc_context(STYLE)
def draw_panels(
    figure: Figure, names: Sequence[str], drawn: Drawn, against: Mapping[str, str], title: str
) -> NDArray[np.object_]:
    """One panel per curve in an empty figure, whose size is set; returns their axes."""
    places = arm_places(list(drawn), against)
    columns = 2 if len(names) == 4 else len(names)
    rows = len(names) // columns
    figure.set_size_inches(5.6 * columns, 3.9 * rows + 0.6)
    figure.set_layout_engine("constrained")
    axes = figure.subplots(rows, columns, squeeze=False).flatten()
    for axis, name in zip(axes, names, strict=True):
        curve = curve_named(name)
        for arm, series in drawn.items():
            if name in series:
                _draw(axis, curve, series[name], arm, *places[arm])
        scale = "log" if curve.logarithmic else "linear"
        axis.set(title=curve.title, xlabel="Round", xscale=scale, yscale=scale)
        if curve.from_zero:
            axis.set_ylim(bottom=0)
    _legend(figure, 3 * columns)
    figure.suptitle(title, fontsize=12 if columns > 1 else 10, wrap=True)
    return axes


@rc_context(STYLE)
def draw_summary_bars(summary: Mapping[str, Any], measure: str, path: Path, dpi: int = 150) -> Path:
    """A PNG of a measure of arms that are combinations of factors: the first factor gives the colour, the last the
    group of bars, and those in between the panel."""
    arms = {tuple(arm["levels"]): arm["measures"].get(measure) for arm in summary["arms"]}
    values = {levels: (spread["mean"], spread["std"]) for levels, spread in arms.items() if spread}
    colours = list(dict.fromkeys(levels[0] for levels in values))
    panels = list(dict.fromkeys(levels[1:-1] for levels in values))
    groups = list(dict.fromkeys(levels[-1] for levels in values))
    figure = Figure(figsize=(1.6 + 0.95 * len(groups), 3.2 * len(panels) + 0.6), layout="constrained")
    axes = figure.subplots(len(panels), 1, squeeze=False, sharex=True).flatten()
    width = 0.8 / len(colours)
    for axis, panel in zip(axes, panels, strict=True):
        for i, colour in enumerate(colours):
            mean, std = zip(*(values.get((colour, *panel, group), (np.nan, 0.0)) for group in groups), strict=True)
            place = np.arange(len(groups)) + (i - (len(colours) - 1) / 2) * width
            axis.bar(place, mean, width, yerr=std, color=COLOURS[i % len(COLOURS)], label=colour, error_kw={"lw": 0.8})
        axis.set_xticks(range(len(groups)), groups, rotation=30, ha="right")
        axis.set(ylabel=measure_named(measure).title, title=", ".join(panel))
    _legend(figure, len(colours))
    figure.suptitle(summary["title"], wrap=True)
    figure.savefig(path, dpi=dpi)
    return path


@rc_context(STYLE)
def draw_summary_uplink(summary: Mapping[str, Any], measure: str, path: Path, dpi: int = 150) -> Path:
    """A PNG of a measure against upload: the level of the first factor labels the point, the others give the panel."""
    panels: dict[tuple[str, ...], dict[str, Mapping[str, Any]]] = {}
    for arm in summary["arms"]:
        if measure in arm["measures"]:
            first, *others = arm["levels"]
            panels.setdefault(tuple(others), {})[first] = arm["measures"]
    figure = Figure(figsize=(6.4 * len(panels), 4.8), layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False, sharey=True).flatten()
    for axis, (panel, arms) in zip(axes, panels.items(), strict=True):
        for i, found in enumerate(arms.values()):
            sent, mean, colour = found["uplink"]["mean"], found[measure]["mean"], COLOURS[i % len(COLOURS)]
            axis.errorbar(sent, mean, found[measure]["std"], color=colour, lw=1.2, alpha=0.35)
            axis.plot(sent, mean, "o", color=colour, markersize=5)
        axis.set(xscale="log", xlabel="Uplink, MB", ylabel=measure_named(measure).title, title=", ".join(panel))
        axis.xaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7)))
        axis.xaxis.set_major_formatter("{x:g}")
        axis.xaxis.set_minor_formatter(NullFormatter())
        axis.margins(x=0.18)
    figure.suptitle(summary["title"], wrap=True)
    figure.draw_without_rendering()  # fixes the positions, which the labels need
    for axis, arms in zip(axes, panels.values(), strict=True):
        label_points(axis, {name: (found["uplink"]["mean"], found[measure]["mean"]) for name, found in arms.items()})
    figure.savefig(path, dpi=dpi)
    return path


@rc_context(STYLE)
def draw_summary_heat_map(summary: Mapping[str, Any], measure: str, path: Path, dpi: int = 150) -> Path:
    """A PNG of a measure of arms that are combinations of factors: the first factor gives the row, the last the column,
    and those in between the panel."""
    figure = heat_map({tuple(arm["levels"]): _mean_of(arm, measure) for arm in summary["arms"]}, summary["title"])
    figure.savefig(path, dpi=dpi)
    return path


def _mean_of(arm: Mapping[str, Any], measure: str) -> float:
    spread = arm["measures"].get(measure)
    return spread["mean"] if spread else np.nan


def heat_map(values: Mapping[tuple[str, ...], float], title: str, best: float | None = None) -> Figure:
    """Numbers between 0 and 1 by their levels, in points, on a colour from red to green. `best` has the full green; by
    default the largest value."""
    rows, columns = (list(dict.fromkeys(levels[i] for levels in values)) for i in (0, -1))
    panels = list(dict.fromkeys(levels[1:-1] for levels in values))
    size = (2.2 + 0.62 * len(columns), len(panels) * (1.3 + 0.3 * len(rows)))
    figure = Figure(figsize=size, layout="constrained")
    most = max(v for v in values.values() if not math.isnan(v)) if best is None else best
    for axis, panel in zip(figure.subplots(len(panels), 1, squeeze=False).flatten(), panels, strict=True):
        shown = np.array([[values.get((row, *panel, column), np.nan) for column in columns] for row in rows])
        axis.imshow(shown, cmap="RdYlGn", vmin=0.5 * most, vmax=most, aspect="auto")
        for i, j in np.argwhere(~np.isnan(shown)):
            dark = not 0.6 * most < shown[i, j] < 0.97 * most
            axis.text(j, i, f"{100 * shown[i, j]:.1f}", ha="center", va="center", fontsize=7.5, c="w" if dark else "k")
        axis.set_xticks(range(len(columns)), columns, rotation=30, ha="left", rotation_mode="anchor")
        axis.set_yticks(range(len(rows)), rows)
        axis.tick_params(top=True, labeltop=True, bottom=False, labelbottom=False, length=0)
        axis.spines[:].set_visible(False)
        axis.grid(False)
        axis.set_title(", ".join(panel), loc="left", fontsize=10)
    figure.suptitle(title, wrap=True)
    return figure


SUMMARY_PLOTS: dict[str, Callable[[Mapping[str, Any], str, Path, int], Path]] = {
    "bars": draw_summary_bars,
    "heat-map": draw_summary_heat_map,
    "uplink": draw_summary_uplink,
}
"""The plots of a summary.json, by their names in `figure.picture`."""


def label_points(axis: Axes, points: Mapping[str, tuple[float, float]]) -> None:
    """Write names beside points, each at the nearest place that overlaps neither a point nor another name."""
    taken = [Bbox.from_bounds(x - 4, y - 4, 8, 8) for x, y in axis.transData.transform(list(points.values()))]
    places = sorted(((dx, dy) for dx in (7, -7, 30, -30) for dy in range(-88, 89, 11)), key=lambda d: math.hypot(*d))
    for name, point in points.items():
        for dx, dy in places:
            side = "left" if dx > 0 else "right"
            label = axis.annotate(name, point, (dx, dy), textcoords="offset points", fontsize=8, ha=side, va="center")
            extent = label.get_window_extent()
            if not any(extent.overlaps(box) for box in taken) or (dx, dy) == places[-1]:
                break
            label.remove()
        taken.append(extent)
        if math.hypot(dx, dy) > NEAR:
            line = {"arrowstyle": "-", "lw": 0.5, "alpha": 0.6, "shrinkA": 0, "shrinkB": 2}
            axis.annotate("", point, (dx, dy), textcoords="offset points", arrowprops=line)


def arm_places(arms: Sequence[str], against: Mapping[str, str]) -> dict[str, tuple[int, int]]:
    """The numbers of each arm's colour and line style. Arms tested against the same arm share their line style."""
    bases = list(dict.fromkeys(against[arm] for arm in arms))
    group = {base: [arm for arm in arms if against[arm] == base] for base in bases}
    return {arm: (group[against[arm]].index(arm), bases.index(against[arm])) for arm in arms}


def _draw(axis: Axes, curve: Curve, series: Series, label: str, colour: int, line: int) -> None:
    rounds, mean, std = (np.array(values) for values in (series.rounds, series.mean, series.std))
    if curve.steps:  # the last step is as wide as the others
        rounds, mean, std = np.append(rounds, rounds[-1] + 1), np.append(mean, mean[-1]), np.append(std, std[-1])
    low = np.maximum(mean - std, 0) if curve.from_zero else mean - std
    if curve.logarithmic:  # a band down to 0 has no lower edge on a logarithmic axis
        low = np.maximum(low, mean / 10)
    shown, drawstyle = COLOURS[colour % len(COLOURS)], "steps-post" if curve.steps else "default"
    axis.plot(rounds, mean, LINES[line % len(LINES)], color=shown, label=label, linewidth=1.7, drawstyle=drawstyle)
    step: Literal["post"] | None = "post" if curve.steps else None
    axis.fill_between(rounds, low, mean + std, color=shown, alpha=0.14, linewidth=0, step=step)


def _legend(figure: Figure, columns: int) -> None:
    """One legend below all panels, with every label once."""
    labels = {
        label: handle for axis in figure.axes for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    figure.legend(labels.values(), labels.keys(), loc="outside lower center", ncols=min(len(labels), columns))
