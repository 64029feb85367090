"""The table of a comparison, for a terminal and for a file."""

from collections.abc import Sequence

from rich import box
from rich.table import Table

from filfl.report.measures import MEASURES
from filfl.report.statistics import ArmStatistics, Spread
from filfl.runs.summary import LAST

NOT_SHOWN = ("kept", "uplink")
"""The measures without a column, unless the tests are about them."""


def columns(
    statistics: Sequence[ArmStatistics], target: float, measure: str = "accuracy"
) -> tuple[list[str], list[list[str]]]:
    """The headings, and a row of texts for every arm; the tests are those of `measure`."""
    known = {name for arm in statistics for name in arm.measures}
    more = [name for name in MEASURES if name in (known - {*NOT_SHOWN} | {measure}) - {"accuracy"}]
    classes = "accuracy" in known
    rounds = list(statistics[0].accuracy_at) if classes else []
    headings = ["arm"]
    if classes:
        headings += [MEASURES["accuracy"].heading, *(f"@{t}" for t in rounds)]
        headings += [f"rounds\nto {target:.2g}", f"MB\nto {target:.2g}"]
    headings += [*(MEASURES[name].heading for name in more), "Welch\np", "paired\np"]
    rows = []
    for arm in statistics:
        tested, row = arm.tests.get(measure), [arm.arm]
        if classes:
            row.append(spread_text(arm.measures.get("accuracy"), MEASURES["accuracy"].form))
            row += [spread_text(arm.accuracy_at[t], "{:.3f}", with_std=False) for t in rounds]
            row += [_to_target(arm.rounds_to_target, "{:.0f}"), _to_target(arm.uplink_to_target, "{:.1f}", scale=1e-6)]
        row += [spread_text(arm.measures.get(name), MEASURES[name].form, name == measure) for name in more]
        row += [p_text(tested.welch_p if tested else None), p_text(tested.paired_p if tested else None)]
        rows.append(row)
    return headings, rows


def caption(statistics: Sequence[ArmStatistics], seeds: int, measure: str = "accuracy") -> str:
    tested: dict[str, list[str]] = {}
    for arm in statistics:
        if arm.arm != arm.against:
            tested.setdefault(arm.against, []).append(arm.arm)
    tests = "; ".join(f"{', '.join(arms)} against {base}" for base, arms in tested.items())
    return (
        f"Mean ± standard deviation over {seeds_text(seeds)}. Final accuracy and losses: mean of the last {LAST} "
        "rounds that have them; @t: accuracy at round t. Rounds and uplink MB to the target accuracy: over the seeds "
        "that reached it (how many, where not all did). |S^f|: mean over the rounds."
        + (f" p: two-sided t-tests on {_words(measure)}, {tests}." if tests else "")
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


def markdown_rows(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table in Markdown."""
    cells = [headings, ["---"] * len(headings), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in cells]


def spread_text(spread: Spread | None, form: str, with_std: bool = True) -> str:
    if spread is None:
        return "-"
    return form.format(spread.mean) + (f"±{form.format(spread.std)}" if with_std and spread.count > 1 else "")


def _to_target(spread: Spread | None, form: str, scale: float = 1.0) -> str:
    if spread is None:
        return "never"
    missed = f" ({spread.count}/{spread.of})" if spread.count < spread.of else ""
    return form.format(spread.mean * scale) + missed


def seeds_text(seeds: int) -> str:
    return f"{seeds} seeds" if seeds > 1 else "1 seed"


def p_text(p: float | None) -> str:
    if p is None:
        return "-"
    return f"{p:.4f}" if p >= 0.0001 else "<.0001"


def _words(measure: str) -> str:
    return "the final accuracy" if measure == "accuracy" else " ".join(MEASURES[measure].heading.split())
