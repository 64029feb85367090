"""The table of a comparison, for a terminal and for a file."""

from collections.abc import Sequence

from rich import box
from rich.table import Table

from filfl.report.statistics import ArmStatistics, Spread
from filfl.runs.summary import LAST


def columns(statistics: Sequence[ArmStatistics], target: float) -> tuple[list[str], list[list[str]]]:
    """The headings, and a row of texts for every arm."""
    rounds = list(statistics[0].accuracy_at)
    headings = [
        "arm",
        "final\naccuracy",
        *(f"@{t}" for t in rounds),
        f"rounds\nto {target:.2g}",
        f"MB\nto {target:.2g}",
        "|S^f|",
        "Welch\np",
        "paired\np",
    ]
    rows = [
        [
            arm.arm,
            _spread(arm.final_accuracy, "{:.3f}"),
            *(_spread(arm.accuracy_at[t], "{:.3f}", with_std=False) for t in rounds),
            _to_target(arm.rounds_to_target, "{:.0f}"),
            _to_target(arm.uplink_to_target, "{:.1f}", scale=1e-6),
            _spread(arm.mean_filtered, "{:.1f}", with_std=False),
            _p(arm.welch_p),
            _p(arm.paired_p),
        ]
        for arm in statistics
    ]
    return headings, rows


def caption(statistics: Sequence[ArmStatistics], seeds: int) -> str:
    tested: dict[str, list[str]] = {}
    for arm in statistics:
        if arm.arm != arm.against:
            tested.setdefault(arm.against, []).append(arm.arm)
    tests = "; ".join(f"{', '.join(arms)} against {base}" for base, arms in tested.items())
    return (
        f"Mean ± standard deviation over {seeds} seeds. Final accuracy: mean of the last {LAST} tested rounds; "
        "@t: accuracy at round t. Rounds and uplink MB to the target accuracy: over the seeds that reached it (how "
        "many, where not all did). |S^f|: mean over the rounds."
        + (f" p: two-sided t-tests on the final accuracy, {tests}." if tests else "")
    )


def rich_table(title: str, statistics: Sequence[ArmStatistics], target: float, seeds: int) -> Table:
    headings, rows = columns(statistics, target)
    table = Table(
        title=title,
        caption=caption(statistics, seeds),
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


def markdown_table(title: str, statistics: Sequence[ArmStatistics], target: float, seeds: int) -> str:
    headings, rows = columns(statistics, target)
    escaped = [heading.replace("|", "\\|").replace("\n", " ") for heading in headings]
    lines = [" | ".join(escaped), " | ".join("---" for _ in headings), *(" | ".join(row) for row in rows)]
    return f"# {title}\n\n" + "\n".join(f"| {line} |" for line in lines) + f"\n\n{caption(statistics, seeds)}\n"


def _spread(spread: Spread | None, form: str, with_std: bool = True) -> str:
    if spread is None:
        return "-"
    return form.format(spread.mean) + (f"±{form.format(spread.std)}" if with_std and spread.count > 1 else "")


def _to_target(spread: Spread | None, form: str, scale: float = 1.0) -> str:
    if spread is None:
        return "never"
    missed = f" ({spread.count}/{spread.of})" if spread.count < spread.of else ""
    return form.format(spread.mean * scale) + missed


def _p(p: float | None) -> str:
    if p is None:
        return "-"
    return f"{p:.4f}" if p >= 0.0001 else "<.0001"
