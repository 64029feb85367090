"""`filfl compare` and `filfl demo`: arms x seeds, a table and pictures."""

import dataclasses
import math
import shlex
from collections.abc import Sequence
from pathlib import Path

from filfl.commands.terminal import console, default_directory, interrupted, missing_words, print_table, say
from filfl.comparison.plan import PLAN, plan_comparison, run_plans, runs_of
from filfl.comparison.progress import ComparisonDisplay
from filfl.config.experiment import Experiment, parse_arm, parse_changes
from filfl.report.comparison import Comparison, report_comparison
from filfl.report.table import rich_table
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
        experiment = dataclasses.replace(experiment, arms=tuple(parse_arm(arm) for arm in arms))
    changes = parse_changes(pairs)
    name = experiment.config(changes).name
    directory = out or default_directory(name, resume, PLAN)
    changed = [*pairs, *([f"scale {scale}"] if scale else [])]
    title = f"{name} with {', '.join(changed)}" if changed else experiment.compare.title or name
    trackers = make_trackers(track, directory)
    plan = plan_comparison(experiment, directory, title, seeds or experiment.compare.seeds, changes, trackers)
    runs = runs_of([plan])
    jobs = min(jobs or num_cores(), len(runs))
    say(title, style="bold")
    say(f"arms: {len(plan.arms)}, seeds: {len(plan.seeds)}, runs: {len(runs)} ({jobs} in parallel)", style="bold")
    try:
        with ComparisonDisplay(console, runs) as display:
            run_plans([plan], jobs, resume, display, say)
    except KeyboardInterrupt:
        interrupted(*missing_words(directory, out, resume))
    target = experiment.compare.target if target is None or math.isnan(target) else target
    show_comparison(report_comparison(plan, target, experiment.compare.at), "accuracy")
    say(f"For an HTML report: {shlex.join(['filfl', 'report', str(directory)])}")
    return directory


def show_comparison(comparison: Comparison, measure: str) -> None:
    """The table, and where the files are."""
    shown = comparison.statistics, comparison.target, comparison.seeds, measure
    print_table(rich_table(comparison.title, *shown))
    picture, *more = comparison.pictures
    say(f"table           {comparison.table}")
    say(f"picture         {picture}")
    say(f"single curves   {', '.join(path.name for path in more)}")
