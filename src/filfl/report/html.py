"""The report as one HTML file that needs nothing else: page, style, script, chart library and data together."""

import json
import re
from collections.abc import Callable, Sequence
from datetime import datetime
from importlib import resources
from typing import Any

import filfl
from filfl.report.cells import measure, measures_table
from filfl.report.collect import Section
from filfl.report.lines import curves
from filfl.report.presence import TRACED, presence, traces
from filfl.report.settings import run_facts, settings
from filfl.report.stored import StoredRun
from filfl.report.styles import arm_places
from filfl.report.verdict import problems_of, verdict

SCRIPTS = ("dom.js", "charts.js", "clients.js", "filtering.js", "tables.js", "page.js")
"""In the order in which they are read."""


ShowRun = Callable[[StoredRun, int], dict[str, Any]]
"""(run, how many decisions of its filterings there is room for) -> what the page shows of it"""


def show_run(run: StoredRun, traced: int) -> dict[str, Any]:
    return {**run_facts(run), "clients": presence(run), "traces": traces(run, traced)}


def report_data(sections: Sequence[Section], live: bool = False, show: ShowRun = show_run) -> dict[str, Any]:
    """Everything that the page shows, as JSON can hold it."""
    runs = sum(len(section.begun) for section in sections)
    return {
        "filfl": filfl.__version__,
        "made": datetime.now().astimezone().strftime("%Y-%m-%d %H:%M"),
        "live": live,
        "sections": [_section(section, TRACED // max(runs, 1), show) for section in sections],
    }


def render(data: dict[str, Any]) -> str:
    """The page with this data in it."""
    title = data["sections"][0]["title"] if len(data["sections"]) == 1 else "filfl report"
    parts = {
        "title": title.replace("&", "&amp;").replace("<", "&lt;"),
        "style": _file("page.css"),
        "theme": _file("theme.js"),
        "library": _file("echarts.min.js"),
        "script": "\n".join(map(_file, SCRIPTS)),
        "data": to_script(data),
    }
    # One pass, so that what is put in is not looked through again.
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found.group(1)], _file("page.html"))


def to_script(data: dict[str, Any]) -> str:
    """JSON that can stand in a script element: without "<" nothing in it can end the element."""
    return json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _section(section: Section, traced: int, show: ShowRun) -> dict[str, Any]:
    measured = measure(section)
    names = [arm.name for arm in section.arms]
    places = arm_places(names, {arm.name: arm.against for arm in section.arms})
    return {
        "title": section.title,
        "place": str(section.place),
        "seeds": section.seeds,
        "target": measured.target,
        "problems": problems_of(section),
        "verdict": verdict(section, measured),
        "arms": [
            {"name": arm.name, "against": arm.against, "colour": places[arm.name][0], "line": places[arm.name][1]}
            for arm in section.arms
        ],
        "measures": measures_table(section, measured),
        "curves": curves(section),
        "settings": settings(section),
        "runs": [{"arm": i, **show(run, traced)} for i, arm in enumerate(section.arms) for run in arm.begun],
    }


def _file(name: str) -> str:
    return (resources.files("filfl") / "report" / "page" / name).read_text(encoding="utf-8")
