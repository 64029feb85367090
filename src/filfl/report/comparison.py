"""A comparison, from its run directories to a table and pictures beside them."""

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from filfl.compare import Plan
from filfl.report.figures import draw_comparison
from filfl.report.statistics import ArmStatistics, compare_arms, default_rounds, default_target
from filfl.report.table import markdown_table
from filfl.runs import read_run
from filfl.runs.files import write_whole


@dataclass(frozen=True)
class Comparison:
    """What was measured, and the files that say so."""

    title: str
    statistics: list[ArmStatistics]
    target: float
    seeds: int
    table: Path
    pictures: list[Path]


def report_comparison(plan: Plan, title: str, target: float | None, at: Sequence[int]) -> Comparison:
    """Read the runs of a finished comparison, and write comparison.md, comparison.json and the PNGs."""
    runs = {arm.name: [read_run(plan.run_directory(arm.name, seed)) for seed in plan.seeds] for arm in plan.arms}
    records = {arm: [run.records for run in seeds] for arm, seeds in runs.items()}
    against = {arm.name: arm.against or plan.arms[0].name for arm in plan.arms}
    target = default_target(records) if target is None else target
    rounds = max(len(run.records) for seeds in runs.values() for run in seeds)
    shown = tuple(t for t in at if t <= rounds) or default_rounds(rounds)
    statistics = compare_arms(records, against, target, shown)
    table = plan.directory / "comparison.md"
    write_whole(table, markdown_table(title, statistics, target, len(plan.seeds)).encode())
    facts = {"title": title, "target": target, "arms": [dataclasses.asdict(arm) for arm in statistics]}
    write_whole(plan.directory / "comparison.json", (json.dumps(facts, indent=2) + "\n").encode())
    pictures = draw_comparison(runs, against, title, plan.directory)
    return Comparison(title, statistics, target, len(plan.seeds), table, pictures)
