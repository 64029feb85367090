"""The report as one self-contained HTML file: page, style, scripts, chart library and data."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from markupsafe import Markup

import filfl
from filfl.config.config import dotted_keys
from filfl.config.schema import show
from filfl.errors import encodable, one_line
from filfl.report.html.clients import MOST_DECISIONS, client_map, client_values, decisions
from filfl.report.html.collect import ArmRuns, Section
from filfl.report.html.events import events
from filfl.report.html.headline import filtering_set_warnings, goal_text, headline, measure, problems_of
from filfl.report.measures import OWN, SHARES, key_of, measure_keys, primary_of
from filfl.report.plots import arm_places
from filfl.report.series import Series, curve_named, rounded, series_of, uploaded
from filfl.report.table import page_row
from filfl.report.values import MEANING
from filfl.runs.metrics import LOSS
from filfl.runs.reader import Run
from filfl.runs.summary import LAST

SCRIPTS = ("dom.js", "charts.js", "clients.js", "values.js", "filtering.js", "tables.js", "page.js")
"""In the order in which the page loads them."""
PAGE = resources.files("filfl.report.html") / "page"

ShowRun = Callable[[Run, int], dict[str, Any]]
"""(run, maximal number of filter decisions) -> what the page shows of the run"""


def show_run(run: Run, most: int) -> dict[str, Any]:
    by_client = {"clients": client_map(run), "values": client_values(run, most), "traces": decisions(run, most)}
    by_client["events"] = events(run)
    return {**_run_facts(run), **by_client}


def report_data(sections: Sequence[Section], live: bool = False, show: ShowRun = show_run) -> dict[str, Any]:
    """Everything that the page shows, ready for JSON."""
    runs = sum(len(section.started) for section in sections)
    return {
        "filfl": filfl.__version__,
        "made": datetime.now().astimezone().strftime("%Y-%m-%d %H:%M"),
        "live": live,
        "last": LAST,
        "meaning": MEANING,
        "sections": [_shown(section, MOST_DECISIONS // max(runs, 1), show) for section in sections],
    }


def _shown(section: Section, most: int, show: ShowRun) -> dict[str, Any]:
    """A section of the page. A run whose numbers cannot be shown, such as losses whose sum is not finite, is shown
    without its rounds, so that it does not cost the others."""
    with np.errstate(all="ignore"):
        try:
            return _ready(section, most, show)
        except Exception:  # of any run, for any content
            arms = [replace(arm, runs=tuple(map(_presentable, arm.runs))) for arm in section.arms]
        try:
            return _ready(replace(section, arms=tuple(arms)), most, show)
        except Exception as error:  # of several runs together
            arms = [replace(arm, runs=tuple(map(partial(_empty, error=error), arm.runs))) for arm in section.arms]
            return _ready(replace(section, arms=tuple(arms)), most, show)


def _ready(section: Section, most: int, show: ShowRun) -> dict[str, Any]:
    made = _section(section, most, show)
    to_script(made)  # raises where a number is not finite
    return made


def _presentable(run: Run | None) -> Run | None:
    """The run if it can be shown by itself, or the run without its rounds."""
    try:
        alone = ArmRuns("alone", "alone", (run,))
        _ready(Section("alone", Path(), (0,), (alone,)), MOST_DECISIONS, show_run)
        return run
    except Exception as error:
        return _empty(run, error)


def _empty(run: Run | None, error: Exception) -> Run | None:
    """A run without its rounds, and the reason why they cannot be shown."""
    if run is None:
        return None
    problem = f"its rounds cannot be shown ({type(error).__name__}: {one_line(str(error))})"
    return Run(run.directory, {}, problems=(*run.problems, problem))


def render(data: dict[str, Any]) -> str:
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, keep_trailing_newline=True)
    return environment.from_string(_file("page.html")).render(
        title=encodable(data["sections"][0]["title"] if len(data["sections"]) == 1 else "filfl report"),
        style=Markup(_file("page.css")),
        theme=Markup(_file("theme.js")),
        library=Markup(_file("echarts.min.js")),
        script=Markup("\n".join(map(_file, SCRIPTS))),
        data=Markup(to_script(data)),
    )


def to_script(data: dict[str, Any]) -> str:
    """JSON for a script element: "<" is escaped, so that no text in it can close the element."""
    return json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def settings(section: Section) -> dict[str, Any]:
    """The config keys that all arms share, and those that differ, with one value per arm (None if not set). Values are
    as in TOML. The page shows name and seed elsewhere."""
    configs = [dotted_keys(arm.started[0].table) if arm.started else {} for arm in section.arms]
    tables = [{key: show(value) for key, value in each.items() if key not in ("name", "seed")} for each in configs]
    known = [table for table in tables if table]
    keys = dict.fromkeys(key for table in known for key in table)
    shared = {key: known[0][key] for key in keys if all(table.get(key) == known[0].get(key) for table in known)}
    differing = [[key, [table.get(key) for table in tables]] for key in keys if key not in shared]
    return {"shared": list(shared.items()), "differing": differing}


def _section(section: Section, most: int, show: ShowRun) -> dict[str, Any]:
    statistics, target = measure(section)
    primary, own = primary_of(section.started), own_keys(section)
    by_name = {arm.arm: arm for arm in statistics}
    places = arm_places([arm.name for arm in section.arms], {arm.name: arm.against for arm in section.arms})
    return {
        "title": section.title,
        "place": str(section.place),
        "seeds": section.seeds,
        "target": target,
        "primary": {
            "key": key_of(primary),
            "name": "test loss" if primary.name == LOSS else primary.name,
            "share": key_of(primary) in SHARES,
            "lower": primary.lower,
            "goal": goal_text(target, primary),
        },
        "own": [{"key": key, "name": key.removeprefix(OWN)} for key in own],
        "problems": problems_of(section),
        "warnings": filtering_set_warnings(section),
        "headline": headline(section, statistics, target),
        "arms": [
            {"name": arm.name, "against": arm.against, "colour": places[arm.name][0], "line": places[arm.name][1]}
            for arm in section.arms
        ],
        "measures": [page_row(arm, by_name[arm.against], primary, own) for arm in statistics],
        "curves": _curves(section),
        "settings": settings(section),
        "runs": [{"arm": i, **show(run, most)} for i, arm in enumerate(section.arms) for run in arm.started],
    }


def _curves(section: Section) -> dict[str, list[dict[str, list[float]]]]:
    """For every chart one line per arm, in the order of the arms. Five digits are more than a screen can show."""
    primary = primary_of(section.started)

    def line(name: str, arm: ArmRuns) -> dict[str, list[float]]:
        series = series_of(curve_named(name), arm.started) or Series((), (), ())
        mean, std = ([rounded(y, 5) for y in values] for values in (series.mean, series.std))
        return {"x": list(series.rounds), "mean": mean, "std": std}

    main = key_of(primary)
    losses = ("test-loss", "selected-train-loss", "global-train-loss")
    names = dict.fromkeys((main, "accuracy", *own_keys(section), *losses, "filtered", "noisy"))
    lines = {name: [line(name, arm) for arm in section.arms] for name in names}
    sent = [[rounded(x, 5) for x in uploaded(arm.started, primary)] for arm in section.arms]
    return {**lines, "uplink": [{**line, "x": x} for line, x in zip(lines[main], sent, strict=True)]}


def own_keys(section: Section) -> list[str]:
    """The measures that are the user's own metrics."""
    return [key for key in measure_keys(run.records for run in section.started) if key.startswith(OWN)]


def _run_facts(run: Run) -> dict[str, Any]:
    """The row of a run in the table of runs: progress, versions, and seconds by phase."""
    versions = run.summary.get("versions") if run.summary else None
    phases = dict.fromkeys(phase for seconds in run.times.values() for phase in seconds)
    return {
        "seed": run.seed,
        "done": len(run.records),
        "rounds": run.rounds,
        "finished": run.finished,
        "stopped": run.stopped,
        "place": str(run.directory),
        "versions": {str(k): str(v) for k, v in versions.items()} if isinstance(versions, Mapping) else {},
        "seconds": {phase: round(sum(s.get(phase, 0.0) for s in run.times.values()), 3) for phase in phases},
    }


def _file(name: str) -> str:
    return (PAGE / name).read_text(encoding="utf-8")
