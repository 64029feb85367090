"""The table of a comparison: for a terminal, as Markdown, and for the HTML page."""

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import StringIO

from rich import box
from rich.console import Console
from rich.table import Table

from filfl.report.formatting import (
    NONE,
    count,
    markdown_rows,
    megabytes,
    p_value,
    percent,
    points,
    signed,
    spread_text,
    to_target,
)
from filfl.report.measures import MEASURES, OWN, SHARES, key_of, measure_named
from filfl.report.statistics import ArmStatistics, Spread
from filfl.runs.metrics import ACCURATE, Primary
from filfl.runs.summary import LAST

WITHOUT_COLUMN = ("kept", "uplink")
"""Measures that have no column in the terminal, unless they are the measure of the tests."""

Cell = tuple[float | None, str]
"""A number to sort by, and its text."""


@dataclass(frozen=True)
class ComparisonTable:
    """The texts of a comparison: one row per arm."""

    title: str
    columns: dict[str, list[str]]
    """By heading, one text per arm."""
    caption: str

    def rows(self) -> list[tuple[str, ...]]:
        return list(zip(*self.columns.values(), strict=True))

    def __str__(self) -> str:
        """The table as the command line prints it, without colours and as wide as it needs to be."""
        table = self.rich()
        table.title = table.caption = None
        text = StringIO()
        Console(file=text, width=10_000, color_system=None, force_jupyter=False).print(table)
        lines = [line.rstrip() for line in text.getvalue().splitlines()]
        return "\n".join([self.title, *lines])

    def _repr_html_(self) -> str:
        cells = [[html.escape(cell) for cell in row] for row in (self.columns, *self.rows())]
        heading, *rows = ("".join(f"<td>{cell}</td>" for cell in row) for row in cells)
        body = "".join(f"<tr>{row}</tr>" for row in rows)
        heading = heading.replace("<td>", "<th>").replace("</td>", "</th>")
        return (
            f"<div><b>{html.escape(self.title)}</b><table><thead><tr>{heading}</tr></thead><tbody>{body}</tbody></table>"
            f"<small>{html.escape(self.caption)}</small></div>"
        )

    def rich(self) -> Table:
        table = Table(
            title=self.title,
            caption=self.caption,
            box=box.SIMPLE_HEAD,
            caption_justify="left",
            pad_edge=False,
            show_edge=False,
            padding=(0, 1, 0, 0),
        )
        for heading in self.columns:
            table.add_column(heading, justify="left" if heading == "arm" else "right", no_wrap=heading == "arm")
        for row in self.rows():
            table.add_row(*row)
        return table

    def markdown(self) -> str:
        lines = markdown_rows(list(self.columns), self.rows())
        return f"# {self.title}\n\n" + "\n".join(lines) + f"\n\n{self.caption}\n"


def comparison_table(
    title: str,
    arms: Sequence[ArmStatistics],
    target: float,
    seeds: int,
    measure: str | None = None,
    primary: Primary = ACCURATE,
) -> ComparisonTable:
    """One row per arm. The p-values are those of `measure`, by default of the primary metric."""
    known = dict.fromkeys(name for arm in arms for name in arm.measures)
    main = key_of(primary)
    measure = measure or main
    columns = {"arm": [arm.arm for arm in arms]}
    if main in known:
        first = measure_named(main)
        columns[first.heading] = [spread_text(arm.measures.get(main), first.form) for arm in arms]
        for t in arms[0].accuracy_at:
            columns[f"@{t}"] = [spread_text(arm.accuracy_at[t], first.form, with_std=False) for arm in arms]
        goal = f"{target:.2g}" if main in SHARES else f"{target:.4g}"
        columns[f"rounds\nto {goal}"] = [to_target(arm.rounds_to_target, "{:.0f}".format) for arm in arms]
        columns[f"MB\nto {goal}"] = [to_target(arm.uplink_to_target, lambda sent: f"{sent / 1e6:.1f}") for arm in arms]
    own = [name for name in known if name.startswith(OWN)]
    for name in dict.fromkeys(["accuracy", *own, *MEASURES]):
        if name in (known.keys() - {*WITHOUT_COLUMN} | {measure}) - {main}:
            shown = measure_named(name)
            columns[shown.heading] = [
                spread_text(arm.measures.get(name), shown.form, with_std=name == measure) for arm in arms
            ]
    columns["Welch\np"] = [p_value(arm.p_values(measure)[0]) for arm in arms]
    columns["paired\np"] = [p_value(arm.p_values(measure)[1]) for arm in arms]
    against: dict[str, list[str]] = {}
    for arm in arms:
        if arm.arm != arm.against:
            against.setdefault(arm.against, []).append(arm.arm)
    tests = "; ".join(f"{', '.join(tested)} against {base}" for base, tested in against.items())
    what = "the final accuracy" if measure == "accuracy" else measure_named(measure).title
    name = "test loss" if primary.name == "loss" else primary.name
    finals = "Final metrics and losses" if own else "Final accuracy and losses"
    caption = (
        f"Mean ± standard deviation over {count(seeds, 'seed')}. {finals}: mean of the last {LAST} "
        f"rounds that have them. @t: {name} at round t. Rounds and uplink MB to the target {name}: mean over the "
        "seeds that reached it; (2/3) means 2 of 3 seeds. |S^f|: mean over the rounds."
        + (f" p: two-sided t-tests on {what}, {tests}." if tests else "")
    )
    return ComparisonTable(title, columns, caption)


def page_row(
    arm: ArmStatistics, against: ArmStatistics, primary: Primary = ACCURATE, own: Sequence[str] = ()
) -> dict[str, Cell]:
    """The row of an arm in the table of the HTML page; page/tables.js has the headings. `own`: keys of own metrics."""
    texts: dict[str, Callable[[Spread | None], str]] = {
        **dict.fromkeys(SHARES, percent),
        **dict.fromkeys(("test-loss", "selected-train-loss"), lambda spread: spread_text(spread, between=" ± ")),
        **dict.fromkeys(("distance", *own), lambda spread: spread_text(spread, "{:.4g}", between=" ± ")),
        "filtered": lambda spread: spread_text(spread, "{:.1f}", between=" ± "),
        "uplink": lambda spread: megabytes(1e6 * spread.mean) if spread else NONE,
    }
    difference, (welch, paired) = final_difference(arm, against, primary), arm.p_values(key_of(primary))
    change = NONE if difference is None else f"{change_text(difference, primary)} to {against.arm}"
    return {
        **{name: _cell(arm.measures.get(name), text) for name, text in texts.items()},
        "rounds-to-target": _cell(arm.rounds_to_target, lambda spread: to_target(spread, "{:.0f}".format)),
        "uplink-to-target": _cell(arm.uplink_to_target, lambda spread: to_target(spread, megabytes)),
        "difference": (difference, change),
        "welch-p": (welch, p_value(welch)),
        "paired-p": (paired, p_value(paired)),
    }


def _cell(spread: Spread | None, text: Callable[[Spread | None], str]) -> Cell:
    return spread.mean if spread else None, text(spread)


def final_difference(arm: ArmStatistics, other: ArmStatistics, primary: Primary = ACCURATE) -> float | None:
    """The final value of the primary metric of an arm minus that of another."""
    mine, theirs = arm.measures.get(key_of(primary)), other.measures.get(key_of(primary))
    return mine.mean - theirs.mean if mine and theirs and arm is not other else None


def change_text(difference: float, primary: Primary) -> str:
    """A difference in the primary metric with its sign, in percentage points where it is a share."""
    return points(difference) if key_of(primary) in SHARES else signed(difference)
