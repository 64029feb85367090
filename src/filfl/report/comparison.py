"""The results of a comparison, and the files that it writes beside its runs: table.md, summary.json and plots."""

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from filfl.comparison.plan import Plan
from filfl.config.config import dotted_keys, identity_of
from filfl.config.figure import Figure
from filfl.display import count
from filfl.errors import ConfigError
from filfl.report.measures import key_of, primary_of
from filfl.report.series import curve_keys, curve_named, rounded, series_of, thinned
from filfl.report.statistics import ArmStatistics, Spread, compare_arms, default_rounds, default_target
from filfl.report.table import ComparisonTable, comparison_table
from filfl.runs.files import write_atomic
from filfl.runs.metrics import Primary
from filfl.runs.reader import Run, read_finished_run
from filfl.simulation.result import Result, can_draw, pandas_for, pyplot_for
from filfl.simulation.stored import stored_result

if TYPE_CHECKING:
    from pandas import DataFrame

    from filfl.report.plots import Drawn

POINTS = 60
"""summary.json keeps at most this many points of a curve."""
SHORT_LIST = re.compile(r"\[\s+([^][{}]*?)\s+\]")


@dataclass(frozen=True, repr=False)
class Comparison:
    """The results of a comparison."""

    plan: Plan
    runs: Mapping[str, Sequence[Run]]
    """By arm, one per seed, as they were read."""
    statistics: list[ArmStatistics]
    """One per arm: its measures over the seeds, and its tests against another arm."""
    table: ComparisonTable
    """The table of `filfl compare`."""
    measure: str
    """The measure of the tests."""
    target: float | None
    """The target of the columns "to target"; None if there is none."""
    drawn: "Drawn"
    primary: Primary
    pictures: Sequence[Path] = ()
    """Empty where matplotlib is not installed."""

    @property
    def directory(self) -> Path:
        return self.plan.directory

    @property
    def path(self) -> Path:
        """The file with the table."""
        return self.directory / "table.md"

    @property
    def rounds(self) -> int:
        return max(len(run.records) for seeds in self.runs.values() for run in seeds)

    @property
    def against(self) -> dict[str, str]:
        """The arm that each arm is tested against."""
        return {arm.arm: arm.against for arm in self.statistics}

    @cached_property
    def results(self) -> dict[str, list[Result]]:
        """The result of every run: by arm, one per seed."""
        return {
            arm: [stored_result(run, planned.config) for run, planned in zip(seeds, self.plan.runs[arm], strict=True)]
            for arm, seeds in self.runs.items()
        }

    def to_frame(self, by: Literal["arm", "run"] = "arm") -> "DataFrame":
        """All measures in a pandas frame.

        by: "arm" gives one row per arm, with mean and standard deviation over the seeds, and the difference in
            `measure` from the arm in the column `against` with the p-values of the tests. "run" gives one row per arm
            and seed. Needs pandas: pip install "filfl[pandas]".
        """
        if by not in ("arm", "run"):
            raise ConfigError(f'by must be "arm" or "run" (got {by!r})')
        rows = map(self._arm_row, self.statistics) if by == "arm" else self._run_rows()
        frame = pandas_for("comparison.to_frame()").DataFrame(rows)
        return frame.set_index("arm", drop=False) if by == "arm" else frame.set_index(["arm", "seed"], drop=False)

    def _arm_row(self, arm: ArmStatistics) -> dict[str, Any]:
        tested = arm.tests.get(self.measure)
        row: dict[str, Any] = {"arm": arm.arm, "seeds": len(self.plan.seeds)}
        for name, spread in {**arm.measures, **_to_target(arm)}.items():
            column = name.replace("-", "_")
            row |= {column: spread and spread.mean, f"{column}_std": spread and spread.std}
        difference = (tested.difference, tested.welch_p, tested.paired_p) if tested else (None, None, None)
        keys = (f"{self.measure.replace('-', '_')}_difference", "welch_p", "paired_p")
        return row | {"against": arm.against if tested else None} | dict(zip(keys, difference, strict=True))

    def _run_rows(self) -> Iterator[dict[str, Any]]:
        for arm in self.statistics:
            measures = {name.replace("-", "_"): s for name, s in {**arm.measures, **_to_target(arm)}.items()}
            for i, seed in enumerate(self.plan.seeds):
                values = {name: spread and spread.values[i] for name, spread in measures.items()}
                yield {"arm": arm.arm, "seed": seed, **values}

    def plot(self) -> "NDArray[np.object_]":
        """Draw the most important curves with matplotlib, as in comparison.png, and return the axes.

        Needs matplotlib: pip install "filfl[plots]".
        """
        pyplot = pyplot_for("comparison.plot()")
        from filfl.report.plots import draw_panels, main_curves

        return draw_panels(pyplot.figure(), main_curves(self.drawn), self.drawn, self.against, self.table.title)

    def __repr__(self) -> str:
        return str(self.table)

    def _repr_html_(self) -> str:
        return self.table._repr_html_()


def _to_target(arm: ArmStatistics) -> dict[str, Spread | None]:
    return {"rounds-to-target": arm.rounds_to_target, "uplink-to-target": arm.uplink_to_target}


def report_comparison(plan: Plan, figure: Figure | None = None) -> Comparison:
    """Read the runs of a finished comparison, and write table.md, summary.json and, with matplotlib, the plots."""
    comparison = read_comparison(plan, figure)
    write_atomic(comparison.path, comparison.table.markdown().encode())
    summary = _summary(comparison)
    write_atomic(plan.directory / "summary.json", summary_text(summary).encode())
    if not can_draw():
        return comparison
    from filfl.report.plots import SUMMARY_PLOTS, draw_comparison

    pictures = draw_comparison(comparison.drawn, comparison.against, comparison.table.title, plan.directory)
    if figure and figure.picture in SUMMARY_PLOTS:
        path = plan.directory / f"{figure.picture}.png"
        pictures.insert(0, SUMMARY_PLOTS[figure.picture](summary, comparison.measure, path, 150))
    return replace(comparison, pictures=pictures)


def read_comparison(plan: Plan, figure: Figure | None = None) -> Comparison:
    """Read the runs of a finished comparison."""
    runs = {arm: [read_finished_run(planned.directory) for planned in seeds] for arm, seeds in plan.runs.items()}
    records = {arm: [run.records for run in seeds] for arm, seeds in runs.items()}
    against = {arm.name: arm.against or plan.arms[0].name for arm in plan.arms}
    everything = [run for seeds in runs.values() for run in seeds]
    primary = primary_of(everything)
    target = default_target(records, primary) if plan.compare.target is None else plan.compare.target
    rounds = max(len(run.records) for seeds in runs.values() for run in seeds)
    shown = tuple(t for t in plan.compare.at if t <= rounds) or default_rounds(rounds)
    statistics = compare_arms(records, against, target, shown, primary)
    curves = [name for name in curve_keys(everything, primary) if figure is None or name in figure.curves]
    drawn = {
        arm: {name: s for name in curves if (s := series_of(curve_named(name), seeds))} for arm, seeds in runs.items()
    }
    title = f"{plan.title} ({count(len(plan.seeds), 'seed')})"
    measure = figure.measure if figure else key_of(primary)
    table = comparison_table(
        title, statistics, target, len(plan.seeds), measure, primary, automatic=plan.compare.target is None
    )
    return Comparison(plan, runs, statistics, table, measure, target, drawn, primary)


def facts_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config of an arm, without what differs between seeds and what does not change the results."""
    table = identity_of(config)
    return dotted_keys({key: value for key, value in table.items() if key not in ("name", "seed", "checkpoint")})


def _summary(comparison: Comparison) -> dict[str, Any]:
    """The content of summary.json: all that is needed to write a page about the comparison and to plot it again."""
    plan, runs, drawn = comparison.plan, comparison.runs, comparison.drawn
    common, own = split_configs({arm: facts_of(seeds[0].table) for arm, seeds in runs.items()})
    levels = {arm.name: list(arm.levels) for arm in plan.arms}
    return {
        "title": plan.title,
        **plan.facts,
        "seeds": list(plan.seeds),
        "rounds": comparison.rounds,
        "primary": {
            "name": comparison.primary.name,
            "better": "lower" if comparison.primary.lower else "higher",
        },
        "target": comparison.target,
        "made": _made([run for seeds in runs.values() for run in seeds]),
        "config": common,
        "arms": [
            {
                **dataclasses.asdict(arm),
                "seeds": list(plan.seeds),
                "levels": levels[arm.arm],
                "config": own[arm.arm],
                "curves": {name: dataclasses.asdict(thinned(s, POINTS)) for name, s in drawn[arm.arm].items()},
            }
            for arm in comparison.statistics
        ],
    }


def _made(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """When and with which versions the seeds were run, and how long that took."""
    groups: dict[tuple[Any, ...], dict[str, dict[str, Any]]] = {}
    for end in (run.summary for run in runs if run.summary):
        key = (end.get("date"), *end["versions"].items())
        groups.setdefault(key, {})[end["run"]] = dict(end)  # arms may share a run, whose seconds count once
    return [
        {
            "seeds": sorted({end["seed"] for end in ends.values()}),
            "date": date,
            "versions": dict(versions),
            "seconds": round(sum(end["seconds"] for end in ends.values()), 1),
        }
        for (date, *versions), ends in groups.items()
    ]


def split_configs(configs: Mapping[str, Mapping[str, Any]]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """What the configs of all arms have in common, and what each has beside it."""
    first, *others = configs.values()
    common = {key: first[key] for key in sorted(first) if all(key in o and o[key] == first[key] for o in others)}
    return common, {arm: {k: own[k] for k in sorted(own) if k not in common} for arm, own in configs.items()}


def summary_text(summary: Mapping[str, Any]) -> str:
    """Readable JSON: six digits, more than any measurement has, indented, with each list of numbers on one line."""
    six_digits = json.loads(json.dumps(summary), parse_float=lambda number: rounded(float(number), 6))
    text = json.dumps(six_digits, indent=1)
    return SHORT_LIST.sub(lambda found: f"[{' '.join(found[1].split())}]", text) + "\n"
