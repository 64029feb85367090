"""The clients' values in words."""

import math
from collections import Counter
from collections.abc import Sequence

from filfl.display import count, some
from filfl.report.formatting import NONE, signed
from filfl.runs.clients import ClientRow, Detection, Z

MOST_NAMED = 4
"""How many clients a sentence names."""
MOST_DROPPED = 10
OFTEN = 3
"""In how many filterings a client must have been to be named as never kept."""
MEANING = (
    "how much lower the loss on the filtering set is with this client than with a typical one, when it is one of the K "
    "clients that are averaged. Below 0, the loss is higher with it."
)
NOT_MEASURED = (
    'This run measured no values of its clients. They are measured at every filtering with filter.reward = "ensemble", '
    'the default of filter.name = "prune", or with filter.values set.'
)


def hurting_sentence(rows: Sequence[ClientRow], where: str = "") -> str:
    """Which clients hurt, lowest value first. `where` names the run."""
    hurts = [row for row in rows if row.verdict == "hurts"]
    if not hurts:
        return " ".join([f"No client hurts measurably{where}.", *_undecided(rows)])
    named = ", ".join(f"{row.name} ({_with_interval(row)})" for row in hurts[:MOST_NAMED])
    more = f" and {len(hurts) - MOST_NAMED:,} more" if len(hurts) > MOST_NAMED else ""
    return f"{count(len(hurts), 'client')} {'hurts' if len(hurts) == 1 else 'hurt'}{where}: {named}{more}."


def _undecided(rows: Sequence[ClientRow]) -> list[str]:
    """That a missing verdict is no proof, and which clients the filter never kept."""
    undecided = [row for row in rows if row.verdict == "cannot tell"]
    if not undecided:
        return []
    dropped = [row.name for row in rows if row.considered >= OFTEN and row.kept == 0]
    never = f" The filter never kept {some(dropped, MOST_DROPPED)}." if dropped else ""
    return [
        f"This is no proof that all are healthy: {len(undecided):,} of {len(rows):,} cannot be told from a typical "
        f"client.{never} A larger filtering set, more rounds or more local training make it clearer."
    ]


def verdicts(rows: Sequence[ClientRow]) -> str:
    """3 hurt, 8 help, no verdict on 20"""
    found = Counter(row.verdict for row in rows)
    return f"{found['hurts']:,} hurt, {found['helps']:,} help, no verdict on {found['cannot tell']:,}"


def detection_sentence(found: Detection) -> str:
    precision = NONE if found.precision is None else f"{found.precision:.2f}"
    return (
        f"Against the known faults: AUC {found.auc:.3f}; of the clients that hurt by the verdict, {precision} are "
        f"faulty (precision); of the faulty clients, {found.recall:.2f} hurt by the verdict (recall)"
    )


def _with_interval(row: ClientRow) -> str:
    """−0.083 ± 0.041: as many digits as give the interval two."""
    value, interval = row.value or 0.0, Z * (row.stderr or 0.0)
    digits = max(0, 1 - math.floor(math.log10(interval))) if interval else 4
    return f"{signed(value, f'{{:+.{digits}f}}')} ± {interval:.{digits}f}"
