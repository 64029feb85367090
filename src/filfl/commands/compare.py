"""`filfl compare` and `filfl demo`: arms x seeds, a table and pictures."""

import math
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from filfl.commands.terminal import console, default_directory, interrupted, missing_words, print_table, say
from filfl.comparison.plan import PLAN, plan_comparison, run_plans, runs_of
from filfl.comparison.pool import PlannedRun
from filfl.comparison.progress import ComparisonDisplay
from filfl.config.config import Config
from filfl.config.experiment import Experiment, parse_arm, parse_changes
from filfl.report.comparison import Comparison, report_comparison
from filfl.system import num_cores
from filfl.trackers import make_trackers


def compare_command(
    source: str,
    arms: Sequence[str] | None,
    out: Path | None,
    pairs: Sequence[str],
    scale: str | None,
    seeds: int | None,
    jobs: int | None,
    target: float | None,
    resume: bool,
    track: Sequence[str] = (),
) -> Path:
    experiment = Experiment.load(source).at_scale(scale)
    if arms:
        experiment = replace(experiment, arms=tuple(map(parse_arm, arms)))
    if target is not None and not math.isnan(target):
        experiment = replace(experiment, compare=replace(experiment.compare, target=target))
    changes = parse_changes(pairs)
    name = experiment.config(changes).name
    directory = out or default_directory(name, resume, PLAN)
    changed = [*pairs, *([f"scale {scale}"] if scale else [])]
    title = f"{name} with {', '.join(changed)}" if changed else experiment.compare.title or name
    trackers = make_trackers(track, directory)

    def planned(arm: str, config: Config) -> PlannedRun:
        folder = directory / arm / f"seed-{config.seed}"
        return PlannedRun(replace(config, name=arm), folder, f"{arm} {folder.name}", trackers)

    plan = plan_comparison(experiment, directory, title, seeds or experiment.compare.seeds, changes, planned)
    runs = runs_of([plan])
    jobs = min(jobs or num_cores(), len(runs))
    say(title, style="bold")
    say(f"arms: {len(plan.arms)}, seeds: {len(plan.seeds)}, runs: {len(runs)} ({jobs} in parallel)", style="bold")
    try:
        with ComparisonDisplay(console, runs) as display:
            run_plans([plan], jobs, resume, display, say)
    except KeyboardInterrupt:
        interrupted(*missing_words(directory, out, resume))
    show_comparison(report_comparison(plan))
    say(f"For an HTML report: {shlex.join(['filfl', 'report', str(directory)])}")
    return directory


def show_comparison(comparison: Comparison) -> None:
    """The table, and where the files are."""
    print_table(comparison.table.rich())
    picture, *more = comparison.pictures
    say(f"table           {comparison.path}")
    say(f"picture         {picture}")
    say(f"single curves   {', '.join(path.name for path in more)}")
