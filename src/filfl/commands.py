"""What the commands do, behind the command line's parsing."""

import dataclasses
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from filfl.compare import make_plan, run_plan
from filfl.config import REGISTRIES, name_of
from filfl.data.partition import PARTITIONS
from filfl.experiment import Experiment, parse_arm, parse_changes
from filfl.filtering import FILTERS
from filfl.filtering.when import WHEN
from filfl.progress import RoundsShown, RunsShown
from filfl.report.comparison import report_comparison
from filfl.report.table import rich_table
from filfl.simulation import simulate

console = Console()
STOPPED = 130
"""The exit code of a command that Ctrl-C ended."""


def run_command(source: str, pairs: Sequence[str], out: Path | None, resume: bool) -> None:
    config = Experiment.load(source).config(parse_changes(pairs))
    directory = out or default_directory(config.name, resume)
    console.print(
        f"[bold]{config.name}[/]: {config.rounds} rounds, data {name_of('data', config.data)}, "
        f"filter {config.filter.name}, selection {name_of('selection', config.selection)} "
        f"with k = {config.selection.k}, seed {config.seed}",
        highlight=False,
    )
    try:
        with RoundsShown(console, config.rounds) as shown:
            result = simulate(config, callbacks=[shown], out=directory, resume=resume, say=console.print)
    except KeyboardInterrupt:
        _stopped(["filfl", "run", source, *(f"--set {pair}" for pair in pairs)], directory)
    if result.already_finished:
        console.print("This run is finished already; nothing was done.")
    summary = result.summary
    console.print(
        f"accuracy {_number(summary['final_accuracy'], '.3f')}, mean |S^f| {_number(summary['mean_filtered'], '.1f')}, "
        f"uplink {summary['uplink_bytes'] / 1e6:.1f} MB, {summary['evaluations']} evaluations, "
        f"{summary['refused']} refused",
        highlight=False,
    )
    console.print(f"Everything about this run is in {directory}", highlight=False, soft_wrap=True)


def compare_command(
    source: str,
    arms: Sequence[str] | None,
    out: Path | None,
    pairs: Sequence[str],
    seeds: int | None,
    jobs: int | None,
    target: float | None,
    resume: bool,
) -> Path:
    experiment = Experiment.load(source)
    if arms:
        experiment = dataclasses.replace(experiment, arms=tuple(parse_arm(arm) for arm in arms))
    changes = parse_changes(pairs)
    name = experiment.config(changes).name
    directory = out or default_directory(name, resume)
    plan = make_plan(experiment, directory, seeds or experiment.compare.seeds, changes)
    jobs = min(jobs or os.cpu_count() or 1, len(plan.tasks))
    title = experiment.compare.title or name
    size = f"{len(plan.arms)} arms x {len(plan.seeds)} seeds = {len(plan.tasks)} runs, {jobs} at a time"
    console.print(f"[bold]{title}[/]: {size}", highlight=False)
    try:
        with RunsShown(console, {task.directory: task.table["rounds"] for task in plan.tasks}) as shown:
            run_plan(plan, jobs, resume, shown, console.print)
    except KeyboardInterrupt:
        given = [*(f"--arm {arm}" for arm in arms or []), *(f"--set {pair}" for pair in pairs)]
        given += [f"--seeds {seeds}"] if seeds else []
        _stopped(["filfl", "compare", source, *given], directory)
    target = experiment.compare.target if target is None else target
    comparison = report_comparison(plan, f"{title} ({len(plan.seeds)} seeds)", target, experiment.compare.at)
    console.print(rich_table(comparison.title, comparison.statistics, comparison.target, comparison.seeds))
    console.print(f"table     {comparison.table}", highlight=False, soft_wrap=True)
    for path in comparison.pictures:
        console.print(f"picture   {path}", highlight=False, soft_wrap=True)
    return directory


def list_command() -> None:
    filters: dict[str, Any] = {"none": "No filtering: plain federated learning.", **FILTERS}
    filters["own"] = (
        "Your own function (clients, reward, rng) -> Filtering, given from Python: simulate(..., filter=f)."
    )
    kinds: dict[str, Mapping[str, Any]] = {**REGISTRIES, "filter": filters, "filter.when": WHEN}
    kinds["data.partition"] = PARTITIONS
    for kind, plugins in kinds.items():
        table = Table(title=kind, title_justify="left", title_style="bold", box=box.SIMPLE, show_header=False)
        table.add_column(min_width=24)
        table.add_column()
        for name, plugin in plugins.items():
            table.add_row(name, _first_line(plugin), style=None)
        console.print(table, highlight=False)


def default_directory(name: str, resume: bool) -> Path:
    """The first free one of runs/NAME, runs/NAME-2, ...; to resume, the last that is there."""
    candidates = (Path("runs") / (name if i == 1 else f"{name}-{i}") for i in count(1))
    previous = None
    for candidate in candidates:
        if not candidate.exists():
            return previous if resume and previous else candidate
        previous = candidate
    raise AssertionError("count() does not end")


def _first_line(plugin: str | Callable[..., Any]) -> str:
    return plugin if isinstance(plugin, str) else (inspect.getdoc(plugin) or "").splitlines()[0]


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _stopped(command: Sequence[str], directory: Path) -> None:
    """Say how to go on after Ctrl-C, and end."""
    console.print("\nStopped. Nothing is lost; go on with:", style="yellow")
    console.print(f"  {' '.join(command)} --out {directory} --resume", highlight=False, soft_wrap=True)
    raise typer.Exit(STOPPED)
