"""The table of a comparison: for a terminal, as Markdown, and for the HTML page."""

from collections.abc import Callable, Sequence

from rich import box
from rich.table import Table

from filfl.report.formatting import (
    NONE,
    count,
    markdown_rows,
    megabytes,
    p_value,
    percent,
    points,
    spread_text,
    to_target,
)
from filfl.report.measures import MEASURES
from filfl.report.statistics import ArmStatistics, Spread
from filfl.runs.summary import LAST

WITHOUT_COLUMN = ("kept", "uplink")
"""Measures that have no column in the terminal, unless they are the measure of the tests."""

Cell = tuple[float | None, str]
"""A number to sort by, and its text."""


def columns(
    statistics: Sequence[ArmStatistics], target: float, measure: str = "accuracy"
) -> tuple[list[str], list[list[str]]]:
    """The headings, and one row of texts per arm. The p-values are those of `measure`."""
    known = {name for arm in statistics for name in arm.measures}
    more = [name for name in MEASURES if name in (known - {*WITHOUT_COLUMN} | {measure}) - {"accuracy"}]
    classes = "accuracy" in known
    rounds = list(statistics[0].accuracy_at) if classes else []
    headings = ["arm"]
    if classes:
        headings += [MEASURES["accuracy"].heading, *(f"@{t}" for t in rounds)]
        headings += [f"rounds\nto {target:.2g}", f"MB\nto {target:.2g}"]
    headings += [*(MEASURES[name].heading for name in more), "Welch\np", "paired\np"]
    rows = []
    for arm in statistics:
        row = [arm.arm]
        if classes:
            row.append(spread_text(arm.measures.get("accuracy")))
            row += [spread_text(arm.accuracy_at[t], with_std=False) for t in rounds]
            row.append(to_target(arm.rounds_to_target, "{:.0f}".format))
            row.append(to_target(arm.uplink_to_target, lambda sent: f"{sent / 1e6:.1f}"))
        row += [spread_text(arm.measures.get(name), MEASURES[name].form, with_std=name == measure) for name in more]
        row += [p_value(_p(arm, "welch_p", measure)), p_value(_p(arm, "paired_p", measure))]
        rows.append(row)
    return headings, rows


def caption(statistics: Sequence[ArmStatistics], seeds: int, measure: str = "accuracy") -> str:
    tested: dict[str, list[str]] = {}
    for arm in statistics:
        if arm.arm != arm.against:
            tested.setdefault(arm.against, []).append(arm.arm)
    tests = "; ".join(f"{', '.join(arms)} against {base}" for base, arms in tested.items())
    return (
        f"Mean ± standard deviation over {count(seeds, 'seed')}. Final accuracy and losses: mean of the last {LAST} "
        "rounds that have them. @t: accuracy at round t. Rounds and uplink MB to the target accuracy: mean over the "
        "seeds that reached it; (2/3) means 2 of 3 seeds. |S^f|: mean over the rounds."
        + (f" p: two-sided t-tests on {_title(measure)}, {tests}." if tests else "")
    )


def rich_table(
    title: str, statistics: Sequence[ArmStatistics], target: float, seeds: int, measure: str = "accuracy"
) -> Table:
    headings, rows = columns(statistics, target, measure)
    table = Table(
        title=title,
        caption=caption(statistics, seeds, measure),
        box=box.SIMPLE_HEAD,
        caption_justify="left",
        pad_edge=False,
        show_edge=False,
        padding=(0, 1, 0, 0),
    )
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "arm" else "right", no_wrap=heading == "arm")
    for row in rows:
        table.add_row(*row)
    return table


def markdown_table(
    title: str, statistics: Sequence[ArmStatistics], target: float, seeds: int, measure: str = "accuracy"
) -> str:
    headings, rows = columns(statistics, target, measure)
    lines = markdown_rows([heading.replace("\n", " ") for heading in headings], rows)
    return f"# {title}\n\n" + "\n".join(lines) + f"\n\n{caption(statistics, seeds, measure)}\n"


def page_row(arm: ArmStatistics, against: ArmStatistics) -> dict[str, Cell]:
    """The row of an arm in the table of the HTML page; page/tables.js has the headings."""

    def cell(spread: Spread | None, text: Callable[[Spread | None], str]) -> Cell:
        return spread.mean if spread else None, text(spread)

    def decimals(form: str) -> Callable[[Spread | None], str]:
        return lambda spread: spread_text(spread, form, between=" ± ")

    texts: dict[str, Callable[[Spread | None], str]] = {
        "accuracy": percent,
        "test-loss": decimals("{:.3f}"),
        "train-loss": decimals("{:.3f}"),
        "uplink": lambda spread: megabytes(1e6 * spread.mean) if spread else NONE,
        "filtered": decimals("{:.1f}"),
        "client-accuracy": percent,
        "worst-tenth": percent,
    }
    difference = accuracy_difference(arm, against)
    welch, paired = _p(arm, "welch_p"), _p(arm, "paired_p")
    return {
        **{name: cell(arm.measures.get(name), text) for name, text in texts.items()},
        "difference": (difference, NONE if difference is None else f"{points(difference)} to {against.arm}"),
        "welch-p": (welch, p_value(welch)),
        "paired-p": (paired, p_value(paired)),
        "rounds-to-target": cell(arm.rounds_to_target, lambda spread: to_target(spread, "{:.0f}".format)),
        "uplink-to-target": cell(arm.uplink_to_target, lambda spread: to_target(spread, megabytes)),
    }


def accuracy_difference(arm: ArmStatistics, other: ArmStatistics) -> float | None:
    """The final accuracy of an arm minus that of another."""
    mine, theirs = arm.measures.get("accuracy"), other.measures.get("accuracy")
    return mine.mean - theirs.mean if mine and theirs and arm is not other else None


def _p(arm: ArmStatistics, which: str, measure: str = "accuracy") -> float | None:
    p: float | None = getattr(arm.tests[measure], which) if measure in arm.tests else None
    return p


def _title(measure: str) -> str:
    return "the final accuracy" if measure == "accuracy" else MEASURES[measure].title
