"""Arms x seeds: the runs of a comparison."""

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from filfl.errors import RunError
from filfl.experiment import Arm, Experiment
from filfl.runs import Follows
from filfl.runs.files import write_whole
from filfl.workers import Progress, Task, run_all

PLAN = "comparison.toml"


@dataclass(frozen=True)
class Plan:
    """Which runs a comparison has: one directory an arm and seed, all under `directory`."""

    directory: Path
    arms: tuple[Arm, ...]
    seeds: tuple[int, ...]
    tasks: tuple[Task, ...]

    def run_directory(self, arm: str, seed: int) -> Path:
        return self.directory / arm / f"seed-{seed}"


def make_plan(
    experiment: Experiment,
    directory: Path,
    seeds: int,
    changes: Mapping[str, Any],
    followers: tuple[Follows, ...] = (),
) -> Plan:
    """Check every arm, and lay the runs out. The arms of a seed share split, availability and initial weights."""
    arms = experiment.checked_arms()
    first = experiment.config(changes).seed
    numbers = tuple(range(first, first + seeds))
    tasks = []
    for seed in numbers:
        for arm in arms:
            config = experiment.config(changes, arm, seed)
            table = {**config.table(), "name": arm.name}
            tasks.append(Task(table, directory / arm.name / f"seed-{seed}", followers))
    return Plan(directory, arms, numbers, tuple(tasks))


def run_plan(plan: Plan, jobs: int, resume: bool, show: Callable[[Progress], None], say: Callable[[str], None]) -> None:
    """Make all the runs, `jobs` at a time."""
    try:
        plan.directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{plan.directory} cannot be made: {error.strerror}") from None
    what = {
        "seeds": list(plan.seeds),
        "arms": {arm.name: {"against": arm.against, **arm.changes} for arm in plan.arms},
    }
    path = plan.directory / PLAN
    if not path.exists() and any(plan.directory.iterdir()):
        raise RunError(f"{plan.directory} is not empty and holds no comparison: choose another --out")
    if path.exists() and not resume:
        raise RunError(
            f"{plan.directory} already holds a comparison: add --resume to go on with it, or choose another --out"
        )
    if path.exists() and _read(path) != what:
        raise RunError(f"{plan.directory} holds another comparison (see {path}): choose another --out")
    write_whole(path, tomli_w.dumps(what).encode())
    run_all(plan.tasks, jobs, resume, show, say)


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        raise RunError(f"{path} is damaged, so it cannot be told which comparison this is: remove it") from None
