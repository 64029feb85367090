"""The paper's figures: their runs, one directory each, which figures share.

OUT/runs/KEY        a run; KEY is a hash of its config, so that figures with a run in common make it once
OUT/NAME            what a figure is made of: comparison.toml says which runs, summary.json what came out
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from filfl.compare import Place, Plan, make_plan
from filfl.config import Config
from filfl.errors import ConfigError
from filfl.experiment import LAPTOP, Arm, Experiment, shipped_names
from filfl.figure import Expectation, Figure
from filfl.options import FOLDER_NAME, is_folder_name, show
from filfl.runs.files import sha256, to_json
from filfl.workers import Task

ALL = "all"


@dataclass(frozen=True)
class Reproduction:
    """A figure and its runs."""

    name: str
    experiment: Experiment
    figure: Figure
    plan: Plan


def figure_names() -> list[str]:
    """The experiments that come with filfl and reproduce something of the paper."""
    return [name for name in shipped_names() if Experiment.load(name).figure]


def plan_figures(
    sources: Sequence[str], scale: str, seeds: int, changes: Mapping[str, Any], out: Path
) -> list[Reproduction]:
    """Lay out the runs of figures, by the names that filfl knows, "all" of them, or files."""
    wanted = [name for source in sources for name in (figure_names() if source == ALL else [source])]
    return [_plan(source, scale, seeds, changes, out) for source in dict.fromkeys(wanted)]


def _plan(source: str, scale: str, seeds: int, changes: Mapping[str, Any], out: Path) -> Reproduction:
    name = Path(source).stem
    experiment = Experiment.load(source).at_scale(scale)
    figure = experiment.figure
    if figure is None:
        raise ConfigError(f"{source} has no [figure] section, so there is nothing to reproduce: use filfl compare")
    if not is_folder_name(name) or name == "runs":
        raise ConfigError(f"the name of the file must be {FOLDER_NAME}, and not runs (got {show(name)})")
    title = experiment.compare.title or name
    title += f", {scale} scale" if scale != LAPTOP else ""
    try:
        plan = make_plan(experiment, out / name, title, seeds, changes, _by_key(name, out / "runs"))
        _check_expectations(figure, experiment)
    except ConfigError as error:
        raise ConfigError([f"{name}: {problem}" for problem in error.problems]) from None
    facts = {"name": name, "scale": scale, "set": dict(changes)}
    return Reproduction(name, experiment, figure, replace(plan, facts=facts, fixed=("scale", "set")))


def run_key(config: Config) -> str:
    """A hash of what makes the run what it is: all of its config but the name."""
    identity = {key: value for key, value in config.identity().items() if key != "name"}
    return sha256(to_json(_sorted(identity)).encode())[:16]


def _by_key(name: str, runs: Path) -> Place:
    def place(config: Config, arm: Arm) -> Task:
        key = run_key(config)
        return Task({**config.table(), "name": key}, runs / key, f"{name} {arm.name} seed-{config.seed}")

    return place


def _sorted(table: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _sorted(value) if isinstance(value, Mapping) else value for key, value in sorted(table.items())}


def _check_expectations(figure: Figure, experiment: Experiment) -> None:
    names = [arm.name for arm in experiment.arms]
    for expectation in map(Expectation.parse, figure.expect):
        others = [] if expectation.number is not None else [expectation.other]
        for arm in (expectation.arm, *others):
            if arm not in names:
                raise ConfigError(f'figure.expect: there is no arm {show(arm)} in "{expectation}"')
