"""A comparison, from its run directories to a table, a summary and pictures beside them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filfl.compare import Plan
from filfl.figure import Figure
from filfl.report.curves import CURVES, series_of
from filfl.report.figures import draw_bars, draw_comparison, draw_uplink
from filfl.report.measures import MEASURES
from filfl.report.statistics import ArmStatistics, compare_arms, default_rounds, default_target
from filfl.report.summary import summary_of, to_text
from filfl.report.table import markdown_table, seeds_text
from filfl.runs import read_run
from filfl.runs.files import write_whole


@dataclass(frozen=True)
class Comparison:
    """What was measured, and the files that say so."""

    title: str
    statistics: list[ArmStatistics]
    target: float
    seeds: int
    summary: dict[str, Any]
    table: Path
    pictures: list[Path]


def report_comparison(plan: Plan, target: float | None, at: Sequence[int], figure: Figure | None = None) -> Comparison:
    """Read the runs of a finished comparison, and write table.md, summary.json and the PNGs."""
    runs = {arm: [read_run(task.directory) for task in tasks] for arm, tasks in plan.runs.items()}
    records = {arm: [run.records for run in seeds] for arm, seeds in runs.items()}
    against = {arm.name: arm.against or plan.arms[0].name for arm in plan.arms}
    target = default_target(records) if target is None else target
    rounds = max(len(run.records) for seeds in runs.values() for run in seeds)
    shown = tuple(t for t in at if t <= rounds) or default_rounds(rounds)
    statistics = compare_arms(records, against, target, shown)
    curves = {name: curve for name, curve in CURVES.items() if figure is None or name in figure.curves}
    drawn = {
        arm: {name: s for name, curve in curves.items() if (s := series_of(curve, seeds))}
        for arm, seeds in runs.items()
    }
    title = f"{plan.title} ({seeds_text(len(plan.seeds))})"
    measure = figure.measure if figure else "accuracy"
    table = plan.directory / "table.md"
    write_whole(table, markdown_table(title, statistics, target, len(plan.seeds), measure).encode())
    summary = summary_of(plan, runs, statistics, drawn, target)
    write_whole(plan.directory / "summary.json", to_text(summary).encode())
    pictures = draw_comparison(drawn, against, title, plan.directory)
    if figure and figure.picture in OF_SUMMARIES:
        path = plan.directory / f"{figure.picture}.png"
        pictures.insert(0, OF_SUMMARIES[figure.picture](summary, measure, path, 150))
    return Comparison(title, statistics, target, len(plan.seeds), summary, table, pictures)


def draw_summary_bars(summary: dict[str, Any], measure: str, path: Path, dpi: int = 150) -> Path:
    """The bars of a summary whose arms are combinations of factors."""
    measured = {tuple(arm["levels"]): arm["measures"].get(measure) for arm in summary["arms"]}
    values = {levels: (spread["mean"], spread["std"]) for levels, spread in measured.items() if spread}
    return draw_bars(values, _words(measure), summary["title"], path, dpi)


def draw_summary_uplink(summary: dict[str, Any], measure: str, path: Path, dpi: int = 150) -> Path:
    """The measure of such arms against what their clients sent."""
    measured = {
        tuple(arm["levels"]): (arm["measures"]["uplink"], arm["measures"].get(measure)) for arm in summary["arms"]
    }
    values = {
        levels: (sent["mean"], spread["mean"], spread["std"]) for levels, (sent, spread) in measured.items() if spread
    }
    return draw_uplink(values, _words(measure), summary["title"], path, dpi)


OF_SUMMARIES: dict[str, Callable[[dict[str, Any], str, Path, int], Path]] = {
    "bars": draw_summary_bars,
    "uplink": draw_summary_uplink,
}
"""The pictures that are made of a summary alone, by the name that `figure.picture` has for them."""


def _words(measure: str) -> str:
    return " ".join(MEASURES[measure].heading.split())
