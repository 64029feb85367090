"""The paper's figures as comparisons that share runs.

OUT/runs/KEY        a run; KEY is a hash of its config, so that figures with a run in common make it once
OUT/NAME            a figure: comparison.toml lists its runs, summary.json has the results
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from filfl.comparison.plan import Plan, plan_comparison
from filfl.comparison.pool import PlannedRun
from filfl.config.config import Config
from filfl.config.experiment import LAPTOP, Experiment, shipped_names
from filfl.config.figure import Expectation, Figure
from filfl.config.schema import FOLDER_NAME, is_folder_name, show
from filfl.errors import ConfigError
from filfl.runs.files import sha256

ALL = "all"
RUNS = "runs"


def figure_names() -> list[str]:
    """The experiments that come with filfl and reproduce a figure of the paper, or study something of our own."""
    return [name for name in shipped_names() if Experiment.load(name).figure]


def paper_names() -> list[str]:
    """Those that reproduce a figure of the paper."""
    figures = {name: Experiment.load(name).figure for name in figure_names()}
    return [name for name, figure in figures.items() if figure and not figure.own_study]


def total_minutes(names: Sequence[str]) -> float:
    """The time of several figures on two cores. A run that figures have in common counts once."""
    minutes: dict[str, float] = {}
    for name in names:
        experiment = Experiment.load(name)
        keys = {run_key(experiment.config({}, arm)) for arm in experiment.checked_arms()}
        if experiment.figure:
            minutes = {key: experiment.figure.minutes / len(keys) for key in keys} | minutes
    return sum(minutes.values())


def plan_figures(
    sources: Sequence[str], scale: str, num_seeds: int, changes: Mapping[str, Any], out: Path
) -> list[tuple[Plan, Figure]]:
    """Plan the runs of figures. A source is the name of a figure, "all" (of the paper), or a TOML file."""
    wanted = [name for source in sources for name in (paper_names() if source == ALL else [source])]
    return [_plan_figure(source, scale, num_seeds, changes, out) for source in dict.fromkeys(wanted)]


def _plan_figure(source: str, scale: str, num_seeds: int, changes: Mapping[str, Any], out: Path) -> tuple[Plan, Figure]:
    name = Path(source).stem
    experiment = Experiment.load(source).at_scale(scale)
    figure = experiment.figure
    if figure is None:
        raise ConfigError(f"{source} has no [figure] section, so there is nothing to reproduce; use filfl compare")
    if not is_folder_name(name) or name == RUNS:
        raise ConfigError(f"the name of the file must be {FOLDER_NAME}, and not {RUNS} (got {show(name)})")

    def planned(arm: str, config: Config) -> PlannedRun:
        key = run_key(config)
        return PlannedRun(replace(config, name=key), out / RUNS / key, f"{name} {arm} seed-{config.seed}")

    title = (experiment.compare.title or name) + (f", {scale} scale" if scale != LAPTOP else "")
    try:
        plan = plan_comparison(experiment, out / name, title, num_seeds, changes, planned)
        for expectation in map(Expectation.parse, figure.expect):
            others = [] if expectation.number is not None else [expectation.other]
            for arm in (expectation.arm, *others):
                if arm not in plan.runs:
                    raise ConfigError(f'figure.expect: there is no arm {show(arm)} in "{expectation}"')
    except ConfigError as error:
        raise ConfigError([f"{name}: {problem}" for problem in error.problems]) from None
    facts = {"name": name, "scale": scale, "set": dict(changes)}
    return replace(plan, facts=facts, fixed=("scale", "set")), figure


def run_key(config: Config) -> str:
    """A hash of everything that determines the run: all of its config except the name."""
    identity = {key: value for key, value in config.identity().items() if key != "name"}
    return sha256(json.dumps(identity, sort_keys=True, separators=(",", ":"), allow_nan=False).encode())[:16]
