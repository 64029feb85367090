"""Arms x seeds: the runs of a comparison."""

import os
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomli_w

from filfl.config import Config
from filfl.errors import RunError
from filfl.experiment import Arm, Experiment
from filfl.runs import Follows
from filfl.runs.files import write_whole
from filfl.workers import Progress, Task, run_all

PLAN = "comparison.toml"

Place = Callable[[Config, Arm], Task]
"""The task that makes the run of this config, whose seed is in it, for this arm."""


@dataclass(frozen=True)
class Plan:
    """Which runs a comparison has; what is made of them goes into `directory`."""

    directory: Path
    title: str
    arms: tuple[Arm, ...]
    seeds: tuple[int, ...]
    runs: Mapping[str, tuple[Task, ...]]
    """By arm, in the order of the seeds."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What else a reader of the directory should know."""
    fixed: tuple[str, ...] = ("seeds", "arms")
    """What must be the same for going on in a directory."""

    def table(self) -> dict[str, Any]:
        """The content of comparison.toml; the runs are relative to its directory."""
        return {
            "title": self.title,
            "seeds": list(self.seeds),
            **self.facts,
            "arms": {arm.name: {"against": arm.against, **arm.changes} for arm in self.arms},
            "runs": {
                arm: [Path(os.path.relpath(task.directory, self.directory)).as_posix() for task in tasks]
                for arm, tasks in self.runs.items()
            },
        }


def make_plan(
    experiment: Experiment, directory: Path, title: str, seeds: int, changes: Mapping[str, Any], place: Place
) -> Plan:
    """Check every arm, and lay the runs out. The arms of a seed share split, availability and initial weights."""
    arms = experiment.checked_arms()
    first = experiment.config(changes).seed
    numbers = tuple(range(first, first + seeds))
    runs = {arm.name: tuple(place(experiment.config(changes, arm, seed), arm) for seed in numbers) for arm in arms}
    return Plan(directory, title, arms, numbers, runs)


def in_folders(directory: Path, followers: tuple[Follows, ...] = ()) -> Place:
    """One folder an arm, and in it one a seed; `followers` follow every run."""

    def place(config: Config, arm: Arm) -> Task:
        folder = directory / arm.name / f"seed-{config.seed}"
        return Task({**config.table(), "name": arm.name}, folder, f"{arm.name} {folder.name}", followers)

    return place


def tasks_of(plans: Sequence[Plan]) -> list[Task]:
    """The runs that the plans need, each once, seed by seed."""
    tasks: dict[Path, Task] = {}
    for plan in plans:
        for of_a_seed in zip(*plan.runs.values(), strict=True):
            for task in of_a_seed:
                tasks.setdefault(task.directory, task)
    return list(tasks.values())


def run_plans(
    plans: Sequence[Plan], jobs: int, resume: bool, show: Callable[[Progress], None], say: Callable[[str], None]
) -> None:
    """Make all the runs, `jobs` at a time."""
    for plan in plans:
        _check(plan, resume)
    for plan in plans:
        write_whole(plan.directory / PLAN, tomli_w.dumps(plan.table()).encode())
    run_all(tasks_of(plans), jobs, resume, show, say)


def _check(plan: Plan, resume: bool) -> None:
    """Make the directory, or see that it holds this very comparison."""
    try:
        plan.directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{plan.directory} cannot be made: {error.strerror}") from None
    path = plan.directory / PLAN
    if not path.exists() and any(plan.directory.iterdir()):
        raise RunError(f"{plan.directory} is not empty and holds no comparison: choose another --out")
    if path.exists() and not resume:
        raise RunError(
            f"{plan.directory} already holds a comparison: add --resume to go on with it, or choose another --out"
        )
    if path.exists():
        there, here = _read(path), plan.table()
        for key in plan.fixed:
            if there.get(key) != here.get(key):
                raise RunError(f"{plan.directory} holds another comparison ({key}, see {path}): choose another --out")


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        raise RunError(f"{path} is damaged, so it cannot be told which comparison this is: remove it") from None
