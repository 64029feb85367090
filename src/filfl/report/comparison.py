"""The files that a comparison writes beside its runs: table.md, summary.json and plots. Summaries can be read again."""

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filfl.comparison.plan import Plan
from filfl.config.config import dotted_keys, identity_of
from filfl.config.figure import Figure
from filfl.report.formatting import count
from filfl.report.plots import SUMMARY_PLOTS, Drawn, draw_comparison
from filfl.report.series import CURVES, Series, rounded, series_of, thinned
from filfl.report.statistics import ArmStatistics, Spread, Tested, compare_arms, default_rounds, default_target
from filfl.report.table import markdown_table
from filfl.runs.files import write_atomic
from filfl.runs.reader import Run, read_finished_run

POINTS = 60
"""summary.json keeps at most this many points of a curve."""
SHORT_LIST = re.compile(r"\[\s+([^][{}]*?)\s+\]")


@dataclass(frozen=True)
class Comparison:
    """The results of a comparison, and the files that hold them."""

    title: str
    statistics: list[ArmStatistics]
    target: float
    seeds: int
    summary: dict[str, Any]
    table: Path
    pictures: list[Path]


def report_comparison(plan: Plan, target: float | None, at: Sequence[int], figure: Figure | None = None) -> Comparison:
    """Read the runs of a finished comparison, and write table.md, summary.json and the plots."""
    runs = {arm: [read_finished_run(task.directory) for task in tasks] for arm, tasks in plan.runs.items()}
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
    title = f"{plan.title} ({count(len(plan.seeds), 'seed')})"
    measure = figure.measure if figure else "accuracy"
    table = plan.directory / "table.md"
    write_atomic(table, markdown_table(title, statistics, target, len(plan.seeds), measure).encode())
    summary = summary_of(plan, runs, statistics, drawn, target)
    write_atomic(plan.directory / "summary.json", to_text(summary).encode())
    pictures = draw_comparison(drawn, against, title, plan.directory)
    if figure and figure.picture in SUMMARY_PLOTS:
        path = plan.directory / f"{figure.picture}.png"
        pictures.insert(0, SUMMARY_PLOTS[figure.picture](summary, measure, path, 150))
    return Comparison(title, statistics, target, len(plan.seeds), summary, table, pictures)


def summary_of(
    plan: Plan, runs: Mapping[str, Sequence[Run]], statistics: Sequence[ArmStatistics], drawn: Drawn, target: float
) -> dict[str, Any]:
    """The content of summary.json: all that is needed to write a page about the comparison and to plot it again."""
    configs = {arm: facts_of(seeds[0].table) for arm, seeds in runs.items()}
    common = dict(set.intersection(*({(k, json.dumps(v)) for k, v in c.items()} for c in configs.values())))
    finished = [run.summary for seeds in runs.values() for run in seeds if run.summary]
    levels = {arm.name: list(arm.levels) for arm in plan.arms}
    return {
        "title": plan.title,
        **plan.facts,
        "seeds": list(plan.seeds),
        "rounds": max(len(run.records) for seeds in runs.values() for run in seeds),
        "target": target,
        # Arms may share a run, whose seconds count once.
        "seconds": round(sum({end["run"]: end["seconds"] for end in finished}.values()), 1),
        "versions": finished[0]["versions"],
        "config": {key: json.loads(value) for key, value in sorted(common.items())},
        "arms": [
            {
                **dataclasses.asdict(arm),
                "levels": levels[arm.arm],
                "config": {key: value for key, value in sorted(configs[arm.arm].items()) if key not in common},
                "curves": {name: dataclasses.asdict(thinned(s, POINTS)) for name, s in drawn[arm.arm].items()},
            }
            for arm in statistics
        ],
    }


def to_text(summary: Mapping[str, Any]) -> str:
    """Readable JSON: indented, with each list of numbers on one line."""
    text = json.dumps(_six_digits(summary), indent=1)
    return SHORT_LIST.sub(lambda found: f"[{' '.join(found[1].split())}]", text) + "\n"


def drawn_in(summary: Mapping[str, Any]) -> dict[str, dict[str, Series]]:
    """The curves in a summary."""
    return {
        arm["arm"]: {name: Series(*map(tuple, curve.values())) for name, curve in arm["curves"].items()}
        for arm in summary["arms"]
    }


def statistics_in(summary: Mapping[str, Any]) -> list[ArmStatistics]:
    """The statistics in a summary."""
    return [
        ArmStatistics(
            arm=arm["arm"],
            against=arm["against"],
            measures={name: _spread(given) for name, given in arm["measures"].items()},
            accuracy_at={int(t): given and _spread(given) for t, given in arm["accuracy_at"].items()},
            rounds_to_target=arm["rounds_to_target"] and _spread(arm["rounds_to_target"]),
            uplink_to_target=arm["uplink_to_target"] and _spread(arm["uplink_to_target"]),
            tests={name: Tested(**given) for name, given in arm["tests"].items()},
        )
        for arm in summary["arms"]
    ]


def facts_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config of an arm, without what differs between seeds and what does not change the results."""
    table = identity_of(config)
    return dotted_keys({key: value for key, value in table.items() if key not in ("name", "seed", "checkpoint")})


def _spread(given: Mapping[str, Any]) -> Spread:
    return Spread(**{**given, "values": tuple(given["values"])})


def _six_digits(value: Any) -> Any:
    """Round every number to six significant digits, more than any measurement has."""
    if isinstance(value, Mapping):
        return {key: _six_digits(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_six_digits(inner) for inner in value]
    return rounded(value, 6) if isinstance(value, float) else value
