"""`filfl compare`, and `filfl.compare`, the same from Python."""

import atexit
import json
import shlex
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from filfl.commands.scale import say_expected_time
from filfl.commands.terminal import console, default_directory, missing_words, resumable, show_comparison
from filfl.commands.terminal import say as say_it
from filfl.comparison.plan import PLAN, Plan, plan_arms, run_plans, runs_of
from filfl.comparison.pool import Given, RunProgress
from filfl.comparison.progress import ComparisonBars, ComparisonDisplay
from filfl.config.config import Config, override
from filfl.config.experiment import Arm, Experiment, parse_changes, read_arms
from filfl.config.schema import objects_of
from filfl.data import Dataset, FederatedData
from filfl.errors import ConfigError
from filfl.evaluation import Augment, Loss, Metric
from filfl.models import Model
from filfl.report.comparison import Comparison, read_comparison, report_comparison
from filfl.runs import Callback, RunCallback
from filfl.runs.progress import python_console
from filfl.runs.seal import SUMMARY
from filfl.system import num_cores
from filfl.trackers import make_trackers

OWN = ("data", "model", "filter", "selection")
"""The sections that can be objects from Python."""


def compare(
    config: Config | Mapping[str, Any] | str | Path,
    arms: Mapping[str, Mapping[str, Any]] | None = None,
    seeds: int | None = None,
    jobs: int | None = None,
    *,
    data: FederatedData | Dataset | None = None,
    model: Callable[[], nn.Module] | Model | None = None,
    loss: Loss | None = None,
    metrics: Mapping[str, Metric] | None = None,
    augment: Augment | None = None,
    callbacks: Sequence[Callback | RunCallback] = (),
    target: float | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    progress: bool = True,
    say: Callable[[str], None] = print,
) -> Comparison:
    """Run every arm with several seeds, in parallel worker processes, and compare them.

    config: as for `simulate`. A TOML file, or the name of an experiment that comes with filfl, may have arms.
    arms: the keys that each arm changes, by the name of the arm: {"none": {"filter.name": "none"}, "dgf": {...}}. Your
        own filter or selection is an arm, too: {"mine": {"filter": function}}. The first arm is the one that the others
        are tested against; "against" names another.
    seeds: the number of runs per arm, with consecutive seeds. jobs: the number of parallel runs, by default one per
        core.
    data, model, loss, metrics, augment, callbacks: as for `simulate`. They are sent to the worker processes.
    target: the test accuracy for the columns "to target", by default nine tenths of the best final accuracy.
    out: a directory for the runs, the table and the plots, of which `filfl report` makes a page. By default the runs
        are in a temporary folder that is removed when Python ends. resume: resume the comparison in `out`.
    progress, say: as for `simulate`.
    """
    if resume and out is None:
        raise ConfigError("resume needs out, the directory of the comparison to resume")
    for name, number in (("seeds", seeds), ("jobs", jobs)):
        if number is not None and (not isinstance(number, int) or isinstance(number, bool) or number < 1):
            raise ConfigError(f"{name} must be a whole number of at least 1 (got {number!r})")
    experiment = _experiment(config)
    if arms is not None:
        experiment = replace(experiment, arms=_arms(arms))
    own = {"data": data, "model": model}
    own = {section: given for section, given in own.items() if given is not None}
    experiment = replace(experiment, own={**experiment.own, **own})
    if target is not None:
        if not 0 <= target <= 1:
            raise ConfigError(f"target must be an accuracy between 0 and 1 (got {target!r})")
        experiment = replace(experiment, compare=replace(experiment.compare, target=target))
    directory = Path(out).expanduser() if out is not None else _temporary()
    given = Given(loss, metrics, augment, tuple(callbacks))
    title = experiment.compare.title or experiment.config({}).name
    plan = plan_arms(experiment, directory, title, seeds or experiment.compare.seeds, {}, given)
    for run in runs_of([plan]):
        run.config.require_objects()
    _run(plan, jobs or num_cores(), resume, progress, say)
    return report_comparison(plan) if out is not None else read_comparison(plan)


def compare_command(
    experiment: Experiment,
    pairs: Sequence[str],
    scale: str | None,
    seeds: int | None,
    jobs: int | None,
    out: Path | None,
    resume: bool,
    track: Sequence[str],
) -> Comparison:
    """Run a comparison with the progress and the table of the command line."""
    changes = parse_changes(pairs)
    name = experiment.config(changes).name
    directory = out or default_directory(name, resume, PLAN)
    changed = [*pairs, *([f"scale {scale}"] if scale else [])]
    title = f"{name} with {', '.join(changed)}" if changed else experiment.compare.title or name
    given = Given(callbacks=make_trackers(track, directory))
    plan = plan_arms(experiment, directory, title, seeds or experiment.compare.seeds, changes, given)
    runs = runs_of([plan])
    jobs = min(jobs or num_cores(), len(runs))
    say_it(title, style="bold")
    say_it(f"arms: {len(plan.arms)}, seeds: {len(plan.seeds)}, runs: {len(runs)} ({jobs} in parallel)", style="bold")
    say_expected_time(scale, [run.config for run in runs])
    with resumable(*missing_words(directory, out, resume)), ComparisonDisplay(console, runs) as display:
        run_plans([plan], jobs, resume, display, say_it)
    comparison = report_comparison(plan)
    show_comparison(comparison)
    say_it(f"For an HTML report: {shlex.join(['filfl', 'report', str(directory)])}")
    return comparison


def comparison_table(comparison: Comparison) -> dict[str, Any]:
    """The JSON object of a comparison whose files are written."""
    return {
        "directory": str(comparison.directory),
        "table": str(comparison.path),
        "pictures": [str(path) for path in comparison.pictures],
        "summary": json.loads((comparison.directory / SUMMARY).read_text(encoding="utf-8")),
    }


def _run(plan: Plan, jobs: int, resume: bool, progress: bool, say: Callable[[str], None]) -> None:
    console = python_console() if progress else None
    with ComparisonBars(console, runs_of([plan])) if console else nullcontext(_nothing) as show:
        run_plans([plan], jobs, resume, show, say)


def _nothing(progress: RunProgress) -> None:
    """Shows no progress."""


def _experiment(source: object) -> Experiment:
    """The experiment that `config` gives: a base, and perhaps arms."""
    if isinstance(source, str | Path):
        return Experiment.load(source)
    if isinstance(source, Mapping) and all(isinstance(key, str) for key in source):
        return Experiment.from_table(override({}, source))
    config = Config.read(source)
    plugins = {section: getattr(config, section) for section in OWN} | {"filter": config.filter.method}
    objects = {section: [*objects_of(plugin).values()] if plugin else [] for section, plugin in plugins.items()}
    return Experiment(config.table(), own={section: given[0] for section, given in objects.items() if any(given)})


def _arms(arms: object) -> tuple[Arm, ...]:
    """The arms of a mapping. What is not a table in the place of a section is an object."""
    if not isinstance(arms, Mapping) or not all(isinstance(changes, Mapping) for changes in arms.values()):
        example = '{"none": {"filter.name": "none"}, "dgf": {"filter.name": "dgf"}}'
        raise ConfigError(f"arms must be a mapping of changes by the name of the arm, such as {example} (got {arms!r})")
    own = {
        name: {key: value for key, value in changes.items() if key in OWN and not isinstance(value, Mapping | str)}
        for name, changes in arms.items()
    }
    tables = {name: {k: v for k, v in changes.items() if k not in own[name]} for name, changes in arms.items()}
    return tuple(replace(arm, own=own[arm.name]) for arm in read_arms(tables))


def _temporary() -> Path:
    """A folder that is removed when Python ends."""
    folder = tempfile.mkdtemp(prefix="filfl-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)
