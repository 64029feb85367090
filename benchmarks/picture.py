"""docs/images/performance.png: speeds relative to the bare loop, and how times grow with the sizes."""

from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import NullFormatter

import workloads
from bars import Part, Results, baseline, in_order, seconds

OURS, OTHERS = "#1b7837", "#9e9e9e"


def draw(results: Results, path: Path) -> None:
    """One panel per workload with one bar per contender, then one panel per size with its curves."""
    training = {name: part for name, part in in_order(results, "training").items() if name != "W2-6"}
    filters = in_order(results, "filters")
    against: dict[str, list[str]] = {}
    for name, curve in results.get("scaling", {}).items():
        against.setdefault(curve["x"], []).append(name)
    panels = [*training, *filters, *against]
    if not panels:
        return
    columns = 3
    rows = -(-len(panels) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(15, 3.4 * rows), squeeze=False, layout="constrained")
    places = iter(axes.flat)
    for name, part in training.items():
        _bars(
            next(places), workloads.TITLES["training"][name].partition(", ")[0], "speed relative to the bare loop", part
        )
    for name, part in filters.items():
        _bars(next(places), f"filter: {workloads.TITLES['filters'][name]}", "speed relative to the naive filter", part)
    for x, names in against.items():
        _curves(next(places), x, {name: results["scaling"][name]["points"] for name in names})
    for axis in places:
        axis.set_axis_off()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _bars(axis: Axes, title: str, label: str, part: Part) -> None:
    base = baseline(part)
    speeds = {who: base / seconds(result) for who, result in part.items() if "seconds" in result}
    order = sorted(speeds, key=lambda who: speeds[who])
    ours = ("filfl", "exact", "ensemble")
    colours = [OURS if who.startswith(ours) else OTHERS for who in order]
    drawn = axis.barh(order, [speeds[who] for who in order], color=colours)
    axis.bar_label(drawn, fmt="%.3g", padding=3, fontsize=9)
    axis.axvline(1.0, color="black", linewidth=0.8, linestyle=":", zorder=0)
    axis.set(title=title, xlabel=label)
    axis.margins(x=0.15)
    axis.spines[["top", "right"]].set_visible(False)


def _curves(axis: Axes, x: str, curves: dict[str, list[tuple[int, float]]]) -> None:
    for name, points in curves.items():
        axis.plot([size for size, _ in points], [value for _, value in points], "o-", label=name)
    sizes = sorted({size for points in curves.values() for size, _ in points})
    values = [value for points in curves.values() for _, value in points]
    axis.set(xlabel=x, ylabel="seconds", xscale="log", yscale="log", title=f"seconds against {x}")
    axis.set_xticks(sizes, [f"{size:,}" for size in sizes], minor=False)
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.set_ylim(min(values) / 5, max(values) * 5)  # at least a decade, so that the axis has ticks
    axis.yaxis.set_major_formatter("{x:g}")
    axis.yaxis.set_minor_formatter(NullFormatter())
    axis.legend(fontsize=8, frameon=False)
    axis.spines[["top", "right"]].set_visible(False)
