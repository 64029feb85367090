"""Write docs/results.md and its plots from the summaries in docs/results.

python benchmarks/results_page.py [DIR]

With DIR, the summaries that `filfl reproduce --out DIR` wrote are first copied into docs/results.
"""

import json
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from filfl.config.config import Config, override
from filfl.config.experiment import LAPTOP, Experiment
from filfl.config.figure import Expectation, Figure
from filfl.report.claims import RULE, VERDICT_RULE, Outcome, outcomes, verdict
from filfl.report.comparison import facts_of
from filfl.report.formatting import NONE, count, markdown_rows, p_value, points, signed, spread_text
from filfl.report.measures import MEASURES
from filfl.report.plots import SUMMARY_PLOTS, draw_curves
from filfl.report.series import Series
from filfl.report.statistics import ArmStatistics, Spread, Tested, compared
from filfl.report.table import comparison_table
from markdown_page import markdown_page

DOCS = Path(__file__).parent.parent / "docs"
TEMPLATE = Path(__file__).parent / "templates" / "results.md.j2"
Summary = Mapping[str, Any]
SHARES_OF_ONE = ("accuracy", "client-accuracy", "worst-tenth")
"""Measures whose differences are shown in percentage points."""
PANELS = 4


def main(arguments: Sequence[str]) -> None:
    for made in sorted(Path(arguments[0]).glob("*/summary.json")) if arguments else []:
        text = made.read_text(encoding="utf-8")
        summary = json.loads(text)
        if summary["scale"] == LAPTOP and summary["name"] in texts():
            (DOCS / "results" / f"{summary['name']}.json").write_text(text, encoding="utf-8")
    stored = summaries()
    for name, summary in stored.items():
        draw(summary, figure_of(name), DOCS / "images" / f"results-{name}.png")
    (DOCS / "results.md").write_text(render(stored, texts()), encoding="utf-8")


def texts() -> dict[str, str]:
    """The verdicts written by hand, by name, in the order of the page."""
    return tomllib.loads((DOCS / "results" / "verdicts.toml").read_text(encoding="utf-8"))


def summaries() -> dict[str, Summary]:
    """The stored summaries, by name."""
    return {path.stem: json.loads(path.read_text()) for path in sorted((DOCS / "results").glob("*.json"))}


def figure_of(name: str) -> Figure:
    figure = Experiment.load(name).figure
    assert figure is not None
    return figure


def render(stored: Mapping[str, Summary], written: Mapping[str, str]) -> str:
    """The page."""
    overview, counts = [], {"yes": 0, "in part": 0, "direction only": 0, "no": 0, "not measured": 0}
    for name in written:
        figure = figure_of(name)
        link = f"[{name}](#{name})"
        if name not in stored:
            overview.append([link, figure.claim, "", "not yet run", "", ""])
            continue
        found = found_in(stored[name], figure)
        counts[verdict(found)] += 1
        for i, outcome in enumerate(found):
            head = [link, figure.claim] if i == 0 else ["", ""]
            p = p_value(outcome.tested.welch_p) if outcome.tested and outcome.expectation.sign != "~" else ""
            overview.append([*head, str(outcome.expectation), measured(outcome), p, outcome.holds])
    if not counts["not measured"]:
        del counts["not measured"]
    page = markdown_page(
        TEMPLATE,
        rule=RULE,
        verdict_rule=VERDICT_RULE,
        names=len(written),
        run=len(stored),
        totals=", ".join(f"{number} {word}" for word, number in counts.items()),
        overview=overview,
        sections=[section(name, stored.get(name), text) for name, text in written.items()],
    )
    return page.rstrip("\n") + "\n"


def section(name: str, summary: Summary | None, text: str) -> dict[str, Any]:
    """What the template shows about one name."""
    figure = figure_of(name)
    made: dict[str, Any] = {
        "name": name,
        "source": "Our claim" if figure.own_study else "The paper",
        "paper": figure.paper,
        "claim": figure.claim,
        "shrunk": figure.shrunk,
        "stored": summary is not None,
    }
    if summary is None:
        return made
    statistics = statistics_in(summary)
    levels = {arm["arm"]: tuple(arm["levels"]) for arm in summary["arms"]}
    versions = ", ".join(f"{what} {version}" for what, version in summary["versions"].items())
    seeds = summary["seeds"]
    older = (
        " The settings were changed after these runs: the description above is not theirs."
        if is_older(name, summary)
        else ""
    )
    table = comparison_table(summary["title"], statistics, summary["target"], len(seeds), figure.measure)
    measures = [figure.measure, *(["uplink"] if figure.picture == "uplink" else [])] if all(levels.values()) else []
    title = summary["title"]
    return made | {
        "facts": (
            f"{count(len(seeds), 'seed')} ({', '.join(map(str, seeds))}), "
            f"{summary['rounds']} rounds, {summary['seconds'] / 60:.1f} minutes of computation; {versions}.{older}"
        ),
        "headings": list(table.columns),
        "rows": table.rows() if figure.picture != "bars" else [],
        "caption": table.caption,
        "pivots": [pivot(statistics, levels, measure) for measure in measures],
        "shares": shares(statistics) if set(SIX) <= set(levels) else [],
        "images": [
            (title, f"results-{name}.png"),
            *((f"{title}: {level}", f"results-{name}-{level}.png") for level in over_rounds(summary, figure)),
        ],
        "outcomes": list(map(outcome_text, found_in(summary, figure))),
        "verdict": text or "not yet written.",
    }


def is_older(name: str, summary: Summary) -> bool:
    """Whether the runs of a summary have other arms or settings than the shipped experiment. An option that a summary
    does not have is newer than its runs, which had what is now the default; filter.screen is left out then, since
    figures that were run before there was a screen turn it off."""
    experiment = Experiment.load(name)
    arms = {arm.name: facts_of(experiment.config({}, arm).table()) for arm in experiment.checked_arms()}
    if list(arms) != [arm["arm"] for arm in summary["arms"]]:
        return True
    for arm in summary["arms"]:
        stored, now = {**summary["config"], **arm["config"]}, arms[arm["arm"]]
        then = facts_of(Config.read(override({}, stored)).table())
        left_out = {"filter.screen"} - stored.keys()
        if any(then.get(key) != now.get(key) for key in (then.keys() | now.keys()) - left_out):
            return True
    return False


SIX = tuple(f"{which}-{selection}" for selection in ("rs", "poc") for which in ("none", "dgf", "rgf"))
"""The arms of the figures about power-of-choice."""


def pivot(statistics: Sequence[ArmStatistics], levels: Mapping[str, tuple[str, ...]], measure: str) -> list[str]:
    """A Markdown table of a measure, with the first factor in the columns and the others in the rows."""
    across = list(dict.fromkeys(level[0] for level in levels.values()))
    down = list(dict.fromkeys(level[1:] for level in levels.values()))
    found = {levels[arm.arm]: arm.measures.get(measure) for arm in statistics}
    form = MEASURES[measure].form
    rows = [[", ".join(d), *(spread_text(found.get((a, *d)), form) for a in across)] for d in down]
    return markdown_rows([MEASURES[measure].title, *across], rows)


def shares(statistics: Sequence[ArmStatistics]) -> list[str]:
    """A Markdown table that separates the effect of the filter from the effect of the selection."""
    values = {arm.arm: arm.measures["accuracy"].values for arm in statistics if "accuracy" in arm.measures}
    effects = [
        ("filter, with power-of-choice (described in the paper)", "{}-poc", "none-poc"),
        ("filter, with random selection", "{}-rs", "none-rs"),
        ("random selection instead of power-of-choice, without a filter", "none-rs", "none-poc"),
        ("both (compared in the authors' code)", "{}-rs", "none-poc"),
    ]
    rows = []
    for effect, mine, theirs in effects:
        for which in ("dgf", "rgf") if "{}" in mine else ("",):
            tested = compared(values[mine.format(which)], values[theirs])
            arms = f"{mine.format(which)} - {theirs}"
            rows.append([effect, arms, points(tested.difference), p_value(tested.welch_p), p_value(tested.paired_p)])
    return markdown_rows(["effect", "difference", "points", "Welch p", "paired p"], rows)


def over_rounds(summary: Summary, figure: Figure) -> dict[str, list[str]]:
    """Beside a plot against upload: the arms to plot over the rounds, by the level of the last factor. These are the
    arms in the expectations and the arms that others are tested against."""
    if figure.picture != "uplink":
        return {}
    expected = {arm for text in figure.expect for arm in (Expectation.parse(text).arm, Expectation.parse(text).other)}
    shown = [arm for arm in summary["arms"] if arm["arm"] in expected or arm["arm"] == arm["against"]]
    levels = dict.fromkeys(arm["levels"][-1] for arm in shown)
    return {level: [arm["arm"] for arm in shown if arm["levels"][-1] == level] for level in levels}


def drawn_in(summary: Mapping[str, Any]) -> dict[str, dict[str, Series]]:
    """The curves in a summary."""
    return {
        arm["arm"]: {name: Series(*map(tuple, curve.values())) for name, curve in arm["curves"].items()}
        for arm in summary["arms"]
    }


def statistics_in(summary: Mapping[str, Any]) -> list[ArmStatistics]:
    """The statistics in a summary."""
    return [
        ArmStatistics(
            arm=arm["arm"],
            against=arm["against"],
            measures={name: _spread(given) for name, given in arm["measures"].items()},
            accuracy_at={int(t): given and _spread(given) for t, given in arm["accuracy_at"].items()},
            rounds_to_target=arm["rounds_to_target"] and _spread(arm["rounds_to_target"]),
            uplink_to_target=arm["uplink_to_target"] and _spread(arm["uplink_to_target"]),
            tests={name: Tested(**given) for name, given in arm["tests"].items()},
        )
        for arm in summary["arms"]
    ]


def _spread(given: Mapping[str, Any]) -> Spread:
    return Spread(**{**given, "values": tuple(given["values"])})


def found_in(summary: Summary, figure: Figure) -> list[Outcome]:
    values = {arm["arm"]: {m: spread["values"] for m, spread in arm["measures"].items()} for arm in summary["arms"]}
    return outcomes(figure.expect, values)


def measured(outcome: Outcome) -> str:
    if outcome.mean is None or (outcome.tested is None and outcome.expectation.number is None):
        return NONE
    if outcome.tested is None:
        return f"{outcome.mean:.3g}"
    if outcome.expectation.measure in SHARES_OF_ONE:
        return f"{points(outcome.tested.difference)} points"
    return signed(outcome.tested.difference)


def outcome_text(outcome: Outcome) -> str:
    p = ""
    if outcome.tested:
        p = f" (Welch p {p_value(outcome.tested.welch_p)}, paired p {p_value(outcome.tested.paired_p)})"
    return f"`{outcome.expectation}`: {measured(outcome)}{p}: **{outcome.holds}**"


def draw(summary: Summary, figure: Figure, path: Path) -> None:
    """The plot of a figure, and the plots over the rounds beside it."""
    against = {arm["arm"]: arm["against"] for arm in summary["arms"]}
    drawn = drawn_in(summary)
    for level, arms in over_rounds(summary, figure).items():
        beside = path.with_stem(f"{path.stem}-{level}")
        shown = {arm: drawn[arm] for arm in arms}
        draw_curves(["accuracy", "filtered"], shown, against, f"{summary['title']}: {level}", beside, dpi=75)
    if figure.picture in SUMMARY_PLOTS:
        SUMMARY_PLOTS[figure.picture](summary, figure.measure, path, 75)
        return
    names = [name for name in figure.curves if any(name in series for series in drawn.values())][:PANELS]
    draw_curves(names, drawn, against, summary["title"], path, dpi=75)


if __name__ == "__main__":
    main(sys.argv[1:])
