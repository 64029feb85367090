"""Write docs/results.md and its plots from the summaries in docs/results.

python benchmarks/results_page.py [DIR]

With DIR, the seeds that `filfl reproduce --out DIR` ran are first added to the stored ones, arm by arm. Seeds of arms
whose config has changed since then replace the stored ones.
"""

import json
import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from filfl.config.config import Config, override
from filfl.config.experiment import LAPTOP, Experiment
from filfl.config.figure import Expectation, Figure
from filfl.display import count
from filfl.report.claims import (
    CORRECTION,
    ESTIMATE_RULE,
    RULES,
    SIZE_RULE,
    Outcome,
    corrected,
    measured_text,
    outcomes,
    second_outcome,
    size_inside,
    values_in,
)
from filfl.report.comparison import facts_of, summary_text
from filfl.report.formatting import NONE, markdown_rows, p_value, points, spread_text
from filfl.report.measures import IN_POINTS, MEASURES
from filfl.report.plots import SUMMARY_PLOTS, draw_curves
from filfl.report.statistics import ArmStatistics, Spread, difference
from markdown_page import markdown_page
from summaries import Summary, curves_in, merged, statistics_in

DOCS = Path(__file__).parent.parent / "docs"
TEMPLATE = Path(__file__).parent / "templates" / "results.md.j2"
PANELS = 4
WORLDS = {
    "do-no-harm": "MNIST-5k",
    "do-no-harm-femnist": "FEMNIST",
    "do-no-harm-cifar10": "CIFAR-10",
    "do-no-harm-shakespeare": "Shakespeare",
}
"""The studies with healthy and faulty clients, and their data."""
POC = {"poc-shakespeare": "Shakespeare", "poc-femnist": "FEMNIST", "poc-cifar10": "CIFAR-10"}
"""The figures about power-of-choice, and their data."""
FILTERS = {"none": "none", "dgf": "DGF", "rgf": "RGF", "local": "local search", "prune": "prune", "oracle": "oracle"}
SELECTIONS = {"rs": "random", "poc": "power-of-choice"}
COLUMNS = (
    "accuracy",
    "mean-accuracy",
    "test-loss",
    "selected-train-loss",
    "global-train-loss",
    "distance",
    "kept",
    "ratio",
    "gap",
    "gain-on-v",
    "gain",
    "optimism",
    "overlap",
)
"""The measures of the arms in a section, where they are known."""
Found = Sequence[tuple[Outcome, Outcome | None]]
"""The outcome of every expectation of a name, and that in the mean accuracy over all rounds."""


def main(arguments: Sequence[str]) -> None:
    for made in sorted(Path(arguments[0]).glob("*/summary.json")) if arguments else []:
        add(json.loads(made.read_text(encoding="utf-8")))
    stored = summaries()
    for name, summary in stored.items():
        draw(summary, figure_of(name), DOCS / "images" / f"results-{name}.png")
    (DOCS / "results.md").write_text(render(stored, texts()), encoding="utf-8")


def add(summary: Summary) -> None:
    """Add the seeds of a new summary to the stored ones."""
    if summary["scale"] != LAPTOP or summary["name"] not in texts():
        return
    path = DOCS / "results" / f"{summary['name']}.json"
    if path.exists():
        summary, notes = merged(json.loads(path.read_text(encoding="utf-8")), summary)
        print("\n".join([*notes, f"{summary['name']}: seeds {', '.join(map(str, summary['seeds']))}"]))
    path.write_text(summary_text(summary), encoding="utf-8")


def texts() -> dict[str, dict[str, str]]:
    """What is written by hand, by name, in the order of the page: the decision that it was written for, why it is so
    in one sentence, and more."""
    return tomllib.loads((DOCS / "results" / "verdicts.toml").read_text(encoding="utf-8"))


def summaries() -> dict[str, Summary]:
    """The stored summaries, by name."""
    return {path.stem: json.loads(path.read_text()) for path in sorted((DOCS / "results").glob("*.json"))}


def figure_of(name: str) -> Figure:
    figure = Experiment.load(name).figure
    assert figure is not None
    return figure


def render(stored: Mapping[str, Summary], written: Mapping[str, Mapping[str, str]]) -> str:
    """The page."""
    found = found_in(stored, written)
    overview = [overview_row(name, found.get(name), text["why"]) for name, text in written.items()]
    every = [outcome for pairs in found.values() for pair in pairs for outcome in pair if outcome]
    page = markdown_page(
        TEMPLATE,
        estimate_rule=ESTIMATE_RULE,
        rules=RULES,
        size_rule=SIZE_RULE,
        correction=f"{CORRECTION} These are {sum(len(outcome.tests) for outcome in every)} tests.",
        totals=[totals(group, found) for group in by_source(written)],
        overview=overview,
        worlds=worlds(stored),
        filterings=filterings(stored),
        shares=shares(stored),
        sections=[section(name, stored[name], found[name], written[name]["text"]) for name in found],
    )
    return page.rstrip("\n") + "\n"


def found_in(stored: Mapping[str, Summary], names: Iterable[str]) -> Mapping[str, Found]:
    """The outcomes of all names that have been run, corrected for the number of tests on the page."""
    pairs: list[tuple[str, Outcome, Outcome | None]] = []
    for name in names:
        if name in stored:
            values = values_in(statistics_in(stored[name]), stored[name]["rounds"], stored[name]["target"])
            found = outcomes(figure_of(name).expect, values)
            pairs += [(name, outcome, second_outcome(outcome.expectation, values)) for outcome in found]
    after = iter(corrected(outcome for _, *both in pairs for outcome in both if outcome))
    by_name: dict[str, list[tuple[Outcome, Outcome | None]]] = {}
    for name, _, second in pairs:
        by_name.setdefault(name, []).append((next(after), next(after) if second else None))
    return by_name


def by_source(names: Mapping[str, Any]) -> list[tuple[str, list[str]]]:
    """The names of the paper's claims, and those of our own."""
    own = {name: figure_of(name).own_study for name in names}
    groups = [("paper", [name for name in own if not own[name]]), ("our own", [name for name in own if own[name]])]
    return [group for group in groups if group[1]]


def totals(group: tuple[str, Sequence[str]], found: Mapping[str, Found]) -> str:
    """How many claims of a group are decided."""
    source, names = group
    run = [found[name] for name in names if name in found]
    main = [pairs[0][0] for pairs in run]
    every = [outcome for pairs in run for outcome, _ in pairs]
    of = "the paper" if source == "paper" else source
    return (
        f"Of the {count(len(names), 'name')} of {of}, {len(run)} have been run. The main claim is decided in "
        f"{sum(outcome.decided for outcome in main)} of them ({sum(outcome.survives for outcome in main)} after the "
        f"correction), and {sum(outcome.decided for outcome in every)} of all {len(every)} expectations are decided "
        f"({sum(outcome.survives for outcome in every)} after the correction)."
    )


def overview_row(name: str, found: Found | None, why: str) -> list[str]:
    figure = figure_of(name)
    main = Expectation.parse(figure.expect[0])
    if found is None:
        return [f"{name}: {figure.claim}", paper_text(main, figure), "not yet run", "not measured", why]
    claim = f"[{name}](#{name}): {figure.claim}"
    (outcome, _), decided = found[0], sum(outcome.decided for outcome, _ in found)
    more = f"; {decided} of {len(found)} expectations decided" if len(found) > 1 else ""
    measured = f"{main.arm} against {main.other}: " if main.number is None else f"{main.arm}: "
    return [
        claim,
        paper_text(main, figure),
        measured + measured_text(outcome),
        f"**{decision_text(outcome)}**{size_text(outcome, ', ')}{more}",
        why,
    ]


def paper_text(expectation: Expectation, figure: Figure) -> str:
    """What the paper says about the main difference."""
    if figure.own_study:
        return "not in the paper"
    if expectation.size is not None and expectation.number is None and expectation.measure in IN_POINTS:
        side = 1 if expectation.sign == ">" else -1
        return f"{points(side * expectation.size).removesuffix('.0')} points"
    if expectation.number is not None:
        size = (expectation.size or 0) * (1 if expectation.sign == ">" else -1)
        about = f"about {expectation.number + size:g}" if size else f"{expectation.sign} {expectation.number:g}"
        return f"{MEASURES[expectation.measure].title} {about}"
    words = {">": "higher", "<": "lower", "~": "similar", ">=": "not worse"}
    return f"{expectation.measure}: {words[expectation.sign]}"


def decision_text(outcome: Outcome) -> str:
    """The decision, with a question mark if it does not survive the correction."""
    return outcome.decision + ("?" if outcome.decided and not outcome.survives else "")


def size_text(outcome: Outcome, before: str = "") -> str:
    inside = size_inside(outcome)
    return "" if inside is None else f"{before}paper's size {'inside' if inside else 'excluded'}"


def section(name: str, summary: Summary, found: Found, text: str) -> dict[str, Any]:
    """What the template shows about one name."""
    figure = figure_of(name)
    statistics = statistics_in(summary)
    levels = {arm["arm"]: tuple(arm["levels"]) for arm in summary["arms"]}
    title = summary["title"]
    return {
        "name": name,
        "paper": "" if figure.own_study else f"{figure.paper}. ",
        "shrunk": figure.shrunk,
        "facts": facts(name, summary),
        "expectations": expectation_table(found),
        "arms": arm_table(statistics, figure.measure) if figure.picture == "curves" else [],
        "pivots": [pivot(statistics, levels, m) for m in (figure.measure, "uplink") if figure.picture == "uplink"],
        "images": [
            (title, f"results-{name}.png"),
            *((f"{title}: {level}", f"results-{name}-{level}.png") for level in over_rounds(summary, figure)),
        ],
        "text": text,
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


def facts(name: str, summary: Summary) -> str:
    """When, with which version, and with how many seeds it was run."""
    minutes = sum(made["seconds"] for made in summary["made"]) / 60
    runs = "; ".join(
        f"seeds {', '.join(map(str, made['seeds']))} on {made['date'] or 'an unknown date'} with filfl "
        f"{made['versions']['filfl']} (torch {made['versions']['torch']}, Python {made['versions']['python']})"
        for made in summary["made"]
    )
    seeds = count(len(summary["seeds"]), "seed")
    changed = " The settings were changed after these runs: the description above is not theirs."
    older = changed if is_older(name, summary) else ""
    return f"{seeds}, {summary['rounds']} rounds, {minutes:.0f} minutes: {runs}.{older}"


def expectation_table(found: Found) -> list[str]:
    """A Markdown table: one row per expectation."""
    second = any(outcome for _, outcome in found)
    sized = any(outcome.expectation.size is not None for outcome, _ in found)
    headings = ["expected", "difference [95 %]", *(["mean over rounds [95 %]"] if second else [])]
    headings += [*(["paper's size"] if sized else []), "p", "q", "decided"]
    rows = []
    for outcome, other in found:
        row = [f"`{outcome.expectation}`", measured_text(outcome)]
        if second:
            row.append(f"{measured_text(other)}: {decision_text(other)}" if other and other.estimate else NONE)
        if sized:
            row.append(size_text(outcome).removeprefix("paper's size ") or NONE)
        p = outcome.tests.get(outcome.deciding) if outcome.deciding else None
        rows.append([*row, p_value(p), p_value(outcome.q), f"**{decision_text(outcome)}**"])
    return markdown_rows(headings, rows)


def arm_table(statistics: Sequence[ArmStatistics], measure: str) -> list[str]:
    """A Markdown table of the measures of every arm."""
    known = {name for arm in statistics for name in arm.measures}
    names = [name for name in dict.fromkeys([measure, *COLUMNS]) if name in known]
    rows = [
        [arm.arm, *(spread_text(arm.measures.get(m), MEASURES[m].form, with_std=m == measure) for m in names)]
        for arm in statistics
    ]
    return markdown_rows(["arm", *(MEASURES[name].title for name in names)], rows)


def worlds(stored: Mapping[str, Summary]) -> list[str]:
    """A Markdown table of all filters: the mean accuracy over all rounds, by data, selection and fault."""
    rows = []
    for name, data in WORLDS.items():
        statistics = statistics_in(stored[name]) if name in stored else []
        found = {arm.arm: arm.measures.get("mean-accuracy") for arm in statistics}
        cells = dict.fromkeys(tuple(arm.split("-", 1)[1].split("-")) for arm in found)
        for selection, fault in sorted(cells, key=lambda cell: list(SELECTIONS).index(cell[0])):
            of = [found.get(f"{which}-{selection}-{fault}") for which in FILTERS]
            rows.append([data, SELECTIONS[selection], fault, *map(_percent, of)])
    return markdown_rows(["data", "selection", "clients", *FILTERS.values()], rows) if rows else []


def _percent(spread: Spread | None) -> str:
    return spread_text(spread, "{:.1f}", scale=100)


def filterings(stored: Mapping[str, Summary]) -> list[str]:
    """A Markdown table of what the filters do with healthy clients: how many they keep, what they gain on V, and how
    similar consecutive sets are."""
    names = ("kept", "gain-on-v", "gain", "optimism", "overlap")
    rows = []
    for name, data in WORLDS.items():
        for arm in statistics_in(stored[name]) if name in stored else []:
            which, selection, fault = arm.arm.split("-")
            if which not in ("none", "oracle") and fault == "clean":
                texts = [spread_text(arm.measures.get(m), MEASURES[m].form) for m in names]
                rows.append([data, SELECTIONS[selection], FILTERS[which], *texts])
    return markdown_rows(["data", "selection", "filter", *(MEASURES[m].title for m in names)], rows) if rows else []


def pivot(statistics: Sequence[ArmStatistics], levels: Mapping[str, tuple[str, ...]], measure: str) -> list[str]:
    """A Markdown table of a measure, with the first factor in the columns and the others in the rows."""
    across = list(dict.fromkeys(level[0] for level in levels.values()))
    down = list(dict.fromkeys(level[1:] for level in levels.values()))
    found = {levels[arm.arm]: arm.measures.get(measure) for arm in statistics}
    form = MEASURES[measure].form
    rows = [[", ".join(d), *(spread_text(found.get((a, *d)), form) for a in across)] for d in down]
    return markdown_rows([MEASURES[measure].title, *across], rows)


def shares(stored: Mapping[str, Summary]) -> list[str]:
    """A Markdown table that separates the effect of the filter from the effect of the selection."""
    effects = [
        ("filter, with random selection", "{}-rs", "none-rs"),
        ("random selection instead of power-of-choice", "none-rs", "none-poc"),
        ("both, as in the authors' code", "{}-rs", "none-poc"),
    ]
    rows = []
    for name, data in POC.items():
        statistics = statistics_in(stored[name]) if name in stored else []
        values = {arm.arm: arm.measures["accuracy"].values for arm in statistics}
        for effect, mine, theirs in effects if values else ():
            for which in ("dgf", "rgf") if "{}" in mine else ("",):
                found = difference(values[mine.format(which)], values[theirs])
                assert found is not None
                mean, low, high = map(points, (found.mean, *found.interval))
                rows.append([data, effect, f"{mine.format(which)} - {theirs}", f"{mean} [{low}, {high}]"])
    return markdown_rows(["data", "effect", "difference", "points [95 %]"], rows) if rows else []


def over_rounds(summary: Summary, figure: Figure) -> dict[str, list[str]]:
    """Beside a plot against upload: the arms to plot over the rounds, by the level of the last factor. These are the
    arms in the expectations and the arms that others are tested against."""
    if figure.picture != "uplink":
        return {}
    expected = {arm for text in figure.expect for arm in (Expectation.parse(text).arm, Expectation.parse(text).other)}
    shown = [arm for arm in summary["arms"] if arm["arm"] in expected or arm["arm"] == arm["against"]]
    levels = dict.fromkeys(arm["levels"][-1] for arm in shown)
    return {level: [arm["arm"] for arm in shown if arm["levels"][-1] == level] for level in levels}


def draw(summary: Summary, figure: Figure, path: Path) -> None:
    """The plot of a figure, and the plots over the rounds beside it."""
    against = {arm["arm"]: arm["against"] for arm in summary["arms"]}
    drawn = curves_in(summary)
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
