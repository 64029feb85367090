"""`filfl compare` and `filfl demo`: arms x seeds, a table and pictures."""

import dataclasses
import math
import shlex
from collections.abc import Sequence
from pathlib import Path

from filfl.commands.terminal import console, default_directory, say, stopped
from filfl.compare import PLAN, in_folders, make_plan, run_plans, tasks_of
from filfl.cores import num_cores
from filfl.experiment import Experiment, parse_arm, parse_changes
from filfl.progress import RunsShown
from filfl.report.comparison import Comparison, report_comparison
from filfl.report.table import rich_table
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
    place = in_folders(directory, make_trackers(track, directory))
    plan = make_plan(experiment, directory, title, seeds or experiment.compare.seeds, changes, place)
    tasks = tasks_of([plan])
    jobs = min(jobs or num_cores(), len(tasks))
    size = f"{len(plan.arms)} arms x {len(plan.seeds)} seeds = {len(tasks)} runs, {jobs} at a time"
    say(f"{title}: {size}", style="bold")
    try:
        with RunsShown(console, tasks) as shown:
            run_plans([plan], jobs, resume, shown, say)
    except KeyboardInterrupt:
        given = [word for arm in arms or [] for word in ("--arm", arm)]
        given += [word for pair in pairs for word in ("--set", pair)]
        given += [word for name in track for word in ("--track", name)]
        numbers = {"--scale": scale, "--seeds": seeds, "--jobs": jobs, "--target": target}
        given += [word for name, value in numbers.items() if value is not None for word in (name, str(value))]
        stopped(["filfl", "compare", source, *given, "--out", str(directory), "--resume"])
    target = experiment.compare.target if target is None or math.isnan(target) else target
    show_comparison(report_comparison(plan, target, experiment.compare.at), "accuracy")
    say(f"as a page: {shlex.join(['filfl', 'report', str(directory)])}")
    return directory


def show_comparison(comparison: Comparison, measure: str) -> None:
    """The table, and where everything is."""
    shown = comparison.statistics, comparison.target, comparison.seeds, measure
    console.print(rich_table(comparison.title, *shown))
    picture, *more = comparison.pictures
    say(f"table     {comparison.table}")
    say(f"picture   {picture}")
    say(f"and each curve by itself: {', '.join(path.name for path in more)}")
