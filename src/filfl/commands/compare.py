"""`filfl compare` and `filfl demo`: arms x seeds, a table and pictures."""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path

from filfl.commands.terminal import console, default_directory, say, stopped
from filfl.compare import PLAN, make_plan, run_plan
from filfl.cores import num_cores
from filfl.experiment import Experiment, parse_arm, parse_changes
from filfl.progress import RunsShown
from filfl.report.comparison import report_comparison
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
    trackers = make_trackers(track, directory)
    plan = make_plan(experiment, directory, seeds or experiment.compare.seeds, changes, trackers)
    jobs = min(jobs or num_cores(), len(plan.tasks))
    changed = [*pairs, *([f"scale {scale}"] if scale else [])]
    title = f"{name} with {', '.join(changed)}" if changed else experiment.compare.title or name
    size = f"{len(plan.arms)} arms x {len(plan.seeds)} seeds = {len(plan.tasks)} runs, {jobs} at a time"
    say(f"{title}: {size}", style="bold")
    try:
        with RunsShown(console, {task.directory: task.table["rounds"] for task in plan.tasks}) as shown:
            run_plan(plan, jobs, resume, shown, say)
    except KeyboardInterrupt:
        given = [word for arm in arms or [] for word in ("--arm", arm)]
        given += [word for pair in pairs for word in ("--set", pair)]
        given += [word for name in track for word in ("--track", name)]
        numbers = {"--scale": scale, "--seeds": seeds, "--jobs": jobs, "--target": target}
        given += [word for name, value in numbers.items() if value is not None for word in (name, str(value))]
        stopped(["filfl", "compare", source, *given], directory)
    target = experiment.compare.target if target is None or math.isnan(target) else target
    comparison = report_comparison(plan, f"{title} ({len(plan.seeds)} seeds)", target, experiment.compare.at)
    console.print(rich_table(comparison.title, comparison.statistics, comparison.target, comparison.seeds))
    picture, *more = comparison.pictures
    say(f"table     {comparison.table}")
    say(f"picture   {picture}")
    say(f"and each curve by itself: {', '.join(path.name for path in more)}")
    return directory
