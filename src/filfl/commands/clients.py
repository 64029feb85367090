"""`filfl clients`: who helps, who hurts, and how sure that is."""

import csv
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path

from rich.table import Table
from rich.text import Text

from filfl.commands.terminal import print_table, say
from filfl.errors import RunError
from filfl.report.formatting import NONE
from filfl.runs.clients import ClientRow, Detection, Z, client_rows, detection
from filfl.runs.reader import Run, read_run

STYLES = {"hurts": "red", "helps": "green", "cannot tell": "dim", "not measured": "dim"}


def clients_command(directory: Path, as_json: bool, as_csv: bool) -> None:
    run = read_run(directory)
    rows = client_rows(run.records, run.clients)
    if as_json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
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
    table = Table(title=f"{run.name}: who helps, who hurts", title_justify="left", caption=caption(rows))
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
            Text(row.name),
            NONE if row.value is None else f"{row.value:+.4f}",
            NONE if row.stderr is None else f"{Z * row.stderr:.4f}",
            Text(row.verdict, STYLES[row.verdict]),
            *([row.fault or ""] if with_fault else []),
            f"{row.kept} of {row.considered}" if row.considered else NONE,
            str(row.selected),
            str(row.refused or ""),
            NONE if row.examples is None else str(row.examples),
        )
    print_table(table)
    if found := detection(rows):
        say(detection_sentence(found))


def caption(rows: Sequence[ClientRow]) -> str:
    if all(row.value is None for row in rows):
        return (
            "This run measured no values. They are measured at every filtering with filter.reward = ensemble, or with "
            "filter.values set."
        )
    return (
        "value: how much lower the loss on the filtering set is with this client than with a typical one, when it is "
        "one of the K clients that are averaged. Below 0 it hurts."
    )


def detection_sentence(found: Detection) -> str:
    precision = NONE if found.precision is None else f"{found.precision:.2f}"
    return (
        f"Against the known faults: AUC {found.auc:.3f}; of the clients that hurt by the verdict, {precision} are "
        f"faulty (precision); of the faulty clients, {found.recall:.2f} hurt by the verdict (recall)"
    )
