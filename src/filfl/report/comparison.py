"""The files that a comparison writes beside its runs: table.md, summary.json and plots."""

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
from filfl.report.measures import key_of, primary_of
from filfl.report.plots import SUMMARY_PLOTS, Drawn, draw_comparison
from filfl.report.series import curve_keys, curve_named, rounded, series_of, thinned
from filfl.report.statistics import ArmStatistics, compare_arms, default_rounds, default_target
from filfl.report.table import ComparisonTable, comparison_table
from filfl.runs.files import write_atomic
from filfl.runs.metrics import Primary
from filfl.runs.reader import Run, read_finished_run

POINTS = 60
"""summary.json keeps at most this many points of a curve."""
SHORT_LIST = re.compile(r"\[\s+([^][{}]*?)\s+\]")


@dataclass(frozen=True)
class Comparison:
    """The results of a comparison, and the files that hold them."""

    statistics: list[ArmStatistics]
    table: ComparisonTable
    path: Path
    """The file with the table."""
    pictures: list[Path]


def report_comparison(plan: Plan, figure: Figure | None = None) -> Comparison:
    """Read the runs of a finished comparison, and write table.md, summary.json and the plots."""
    runs = {arm: [read_finished_run(planned.directory) for planned in seeds] for arm, seeds in plan.runs.items()}
    records = {arm: [run.records for run in seeds] for arm, seeds in runs.items()}
    against = {arm.name: arm.against or plan.arms[0].name for arm in plan.arms}
    everything = [run for seeds in runs.values() for run in seeds]
    primary = primary_of(everything)
    target = default_target(records, primary) if plan.compare.target is None else plan.compare.target
    rounds = max(len(run.records) for seeds in runs.values() for run in seeds)
    shown = tuple(t for t in plan.compare.at if t <= rounds) or default_rounds(rounds)
    statistics = compare_arms(records, against, target, shown, primary)
    curves = [name for name in curve_keys(everything, primary) if figure is None or name in figure.curves]
    drawn = {
        arm: {name: s for name in curves if (s := series_of(curve_named(name), seeds))} for arm, seeds in runs.items()
    }
    title = f"{plan.title} ({count(len(plan.seeds), 'seed')})"
    measure = figure.measure if figure else key_of(primary)
    table = comparison_table(title, statistics, target, len(plan.seeds), measure, primary)
    write_atomic(plan.directory / "table.md", table.markdown().encode())
    summary = _summary(plan, runs, statistics, drawn, target, rounds, primary)
    write_atomic(plan.directory / "summary.json", _to_text(summary).encode())
    pictures = draw_comparison(drawn, against, title, plan.directory)
    if figure and figure.picture in SUMMARY_PLOTS:
        path = plan.directory / f"{figure.picture}.png"
        pictures.insert(0, SUMMARY_PLOTS[figure.picture](summary, measure, path, 150))
    return Comparison(statistics, table, plan.directory / "table.md", pictures)


def facts_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config of an arm, without what differs between seeds and what does not change the results."""
    table = identity_of(config)
    return dotted_keys({key: value for key, value in table.items() if key not in ("name", "seed", "checkpoint")})


def _summary(
    plan: Plan,
    runs: Mapping[str, Sequence[Run]],
    statistics: Sequence[ArmStatistics],
    drawn: Drawn,
    target: float,
    rounds: int,
    primary: Primary,
) -> dict[str, Any]:
    """The content of summary.json: all that is needed to write a page about the comparison and to plot it again."""
    configs = {arm: facts_of(seeds[0].table) for arm, seeds in runs.items()}
    first, *others = configs.values()
    common = {key for key, value in first.items() if all(other.get(key) == value for other in others)}
    finished = [run.summary for seeds in runs.values() for run in seeds if run.summary]
    levels = {arm.name: list(arm.levels) for arm in plan.arms}
    return {
        "title": plan.title,
        **plan.facts,
        "seeds": list(plan.seeds),
        "rounds": rounds,
        "primary": {"name": primary.name, "better": "lower" if primary.lower else "higher"},
        "target": target,
        # Arms may share a run, whose seconds count once.
        "seconds": round(sum({end["run"]: end["seconds"] for end in finished}.values()), 1),
        "versions": finished[0]["versions"],
        "config": {key: first[key] for key in sorted(common)},
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


def _to_text(summary: Mapping[str, Any]) -> str:
    """Readable JSON: six digits, more than any measurement has, indented, with each list of numbers on one line."""
    six_digits = json.loads(json.dumps(summary), parse_float=lambda number: rounded(float(number), 6))
    text = json.dumps(six_digits, indent=1)
    return SHORT_LIST.sub(lambda found: f"[{' '.join(found[1].split())}]", text) + "\n"
