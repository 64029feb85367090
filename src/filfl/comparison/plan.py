"""Arms x seeds: which runs a comparison has, and how they are made."""

import os
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import tomli_w

from filfl.comparison.pool import Given, PlannedRun, RunProgress, run_all
from filfl.config.config import Config
from filfl.config.experiment import Arm, Compare, Experiment
from filfl.errors import ConfigError, DataError, RunError
from filfl.runs.files import regular, write_atomic
from filfl.runs.metrics import ACCURACY
from filfl.runs.seal import SUMMARY

PLAN = "comparison.toml"


@dataclass(frozen=True)
class Plan:
    """The runs of a comparison, and the directory for its table, pictures and summary."""

    directory: Path
    title: str
    arms: tuple[Arm, ...]
    runs: Mapping[str, tuple[PlannedRun, ...]]
    """By arm; every arm has the same seeds in the same order."""
    compare: Compare
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Further entries of comparison.toml and summary.json."""
    fixed: tuple[str, ...] = ("seeds", "arms")
    """The entries of comparison.toml that must stay the same when the comparison is resumed."""

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(run.config.seed for run in self.runs[self.arms[0].name])

    def table(self) -> dict[str, Any]:
        """The content of comparison.toml. Paths of runs are relative to its directory."""
        return {
            "title": self.title,
            "seeds": list(self.seeds),
            **({} if self.compare.target is None else {"target": self.compare.target}),
            **self.facts,
            "arms": {arm.name: {"against": arm.against, **arm.changes, **self._own_names(arm)} for arm in self.arms},
            "runs": {
                arm: [Path(os.path.relpath(run.directory, self.directory)).as_posix() for run in runs]
                for arm, runs in self.runs.items()
            },
        }

    def _own_names(self, arm: Arm) -> dict[str, str]:
        """The names of the objects that an arm got from Python, such as {"filter.name": "own"}."""
        table = self.runs[arm.name][0].config.table()
        return {f"{section}.name": table[section]["name"] for section in arm.own}


def plan_arms(
    experiment: Experiment, directory: Path, title: str, num_seeds: int, changes: Mapping[str, Any], given: Given
) -> Plan:
    """A comparison whose runs are in ARM/seed-N of its directory. `given` are the functions that its runs use."""

    def planned(arm: str, config: Config) -> PlannedRun:
        folder = directory / arm / f"seed-{config.seed}"
        return PlannedRun(replace(config, name=arm), folder, f"{arm} {folder.name}", given)

    return plan_comparison(experiment, directory, title, num_seeds, changes, planned)


def plan_comparison(
    experiment: Experiment,
    directory: Path,
    title: str,
    num_seeds: int,
    changes: Mapping[str, Any],
    planned: Callable[[str, Config], PlannedRun],
) -> Plan:
    """Every arm with consecutive seeds, from the experiment's own seed upwards. `planned` gives the run of an arm.

    The arms of a seed share data split, availability and initial weights.
    """
    arms = experiment.checked_arms()
    first = experiment.config(changes).seed
    configs = {arm.name: experiment.config(changes, arm) for arm in arms}
    target, primary = experiment.compare.target, configs[arms[0].name].evaluate.primary
    if target is not None and not 0 <= target <= 1 and primary in (None, ACCURACY):
        raise ConfigError(
            f"compare.target is an accuracy and must be between 0 and 1 (got {target:g}); for a target in another "
            "metric, set evaluate.primary"
        )
    runs = {
        arm: tuple(planned(arm, replace(config, seed=seed)) for seed in range(first, first + num_seeds))
        for arm, config in configs.items()
    }
    return Plan(directory, title, arms, runs, experiment.compare)


def runs_of(plans: Sequence[Plan]) -> list[PlannedRun]:
    """The runs that the plans need, each once, seed by seed."""
    runs: dict[Path, PlannedRun] = {}
    for plan in plans:
        for of_one_seed in zip(*plan.runs.values(), strict=True):
            for run in of_one_seed:
                runs.setdefault(run.directory, run)
    return list(runs.values())


def run_plans(
    plans: Sequence[Plan], jobs: int, resume: bool, show: Callable[[RunProgress], None], say: Callable[[str], None]
) -> None:
    """Write comparison.toml of every plan, then make all runs, `jobs` of them in parallel."""
    _check_sources(runs_of(plans))
    for plan in plans:
        _check_directory(plan, resume)
    for plan in plans:
        write_atomic(plan.directory / PLAN, tomli_w.dumps(plan.table()).encode())
    run_all(runs_of(plans), jobs, resume, show, say)


def _check_sources(runs: Sequence[PlannedRun]) -> None:
    """Name all datasets that are missing at once, before any run starts."""
    problems: dict[str, None] = {}
    for run in runs:
        try:
            if not (run.directory / SUMMARY).exists():
                run.config.data.check_source()
        except DataError as error:
            problems[str(error)] = None
    if problems:
        raise DataError("\n".join(problems))


def _check_directory(plan: Plan, resume: bool) -> None:
    """Create the directory, or check that it contains the same comparison."""
    try:
        plan.directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{plan.directory} cannot be created: {error.strerror}") from None
    path = plan.directory / PLAN
    if not path.exists():
        if any(plan.directory.iterdir()):
            raise RunError(f"{plan.directory} is not empty and contains no comparison; choose another --out")
        return
    if not resume:
        raise RunError(
            f"{plan.directory} already contains a comparison; add --resume to continue it, or choose another --out"
        )
    try:
        stored = tomllib.loads(regular(path).read_text(encoding="utf-8"))
    except ValueError:
        raise RunError(f"{path} is damaged; remove it and run the command again") from None
    new = plan.table()
    for key in plan.fixed:
        if stored.get(key) != new.get(key):
            raise RunError(
                f"{plan.directory} contains another comparison ({key} differs, see {path}); choose another --out"
            )
