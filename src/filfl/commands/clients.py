"""`filfl clients`: who helps, who hurts, and how sure that is."""

import csv
import sys
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path

from rich.table import Table
from rich.text import Text

from filfl.commands import terminal
from filfl.commands.terminal import print_json, print_table, printable
from filfl.errors import RunError
from filfl.report.formatting import NONE
from filfl.report.values import MEANING, NOT_MEASURED, detection_sentence
from filfl.runs.clients import ClientRow, Z, client_rows, detection
from filfl.runs.reader import Run, read_run

STYLES = {"hurts": "red", "helps": "green", "cannot tell": "dim", "not measured": "dim"}

EXPENDABLE = ("refused", "examples", "selected", "fault", "kept")
"""The columns that a narrow terminal leaves out, the first of them first."""


def clients_command(directory: Path, as_json: bool, as_csv: bool) -> None:
    run = read_run(directory)
    rows = client_rows(run.records, run.clients)
    if as_json:
        print_json([asdict(row) for row in rows])
    elif as_csv:
        writer = csv.DictWriter(sys.stdout, [field.name for field in fields(ClientRow)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(row) for row in rows)
    else:
        show(run, rows)


def show(run: Run, rows: Sequence[ClientRow]) -> None:
    if not rows:
        raise RunError(f"{run.directory} has no finished round, so nothing is known about its clients")
    with_fault = any(row.fault for row in rows)
    caption = NOT_MEASURED if all(row.value is None for row in rows) else f"value: {MEANING}"
    table = Table(title=Text(f"{printable(run.name)}: who helps, who hurts"), title_justify="left", caption=caption)
    table.add_column("client")
    for heading in ("value", "± 95 %"):
        table.add_column(heading, justify="right")
    table.add_column("verdict")
    if with_fault:
        table.add_column("fault")
    for heading in ("kept", "selected", "refused", "examples"):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(
            Text(printable(row.name) + (" (trusted)" if row.trusted else "")),
            NONE if row.value is None else f"{row.value:+.4f}",
            NONE if row.stderr is None else f"{Z * row.stderr:.4f}",
            Text(row.verdict, STYLES[row.verdict]),
            *([Text(printable(row.fault or ""))] if with_fault else []),
            f"{row.kept} of {row.considered}" if row.considered else NONE,
            str(row.selected),
            str(row.refused or ""),
            NONE if row.examples is None else str(row.examples),
        )
    print_table(table, EXPENDABLE, " (--csv and --json have them)")
    if found := detection(rows):
        terminal.console.print(detection_sentence(found), highlight=False, markup=False)
