"""Who helps and who hurts: one row per client of a run, from its records."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from filfl.core.evidence import auc
from filfl.runs.client_table import ClientTable

Z = 1.96
"""The 95 % interval is the value plus and minus this many standard errors."""
ONE_SIDED = 1.645
"""A one-sided test at 5 %: this many standard errors below 0."""
LEVEL = 0.05
"""The share of wrong verdicts among those that say that a client hurts or helps."""
Verdict = Literal["hurts", "cannot tell", "helps", "not measured"]


@dataclass(frozen=True)
class ClientRow:
    """What a run tells about one client."""

    id: int
    name: str
    value: float | None
    """How much lower the loss on V is with this client than with a typical one, as the running estimate at the end.
    Negative values hurt. None if the client was in no filtering that measured values."""
    verdict: Verdict
    stderr: float | None
    considered: int
    """In how many filterings."""
    kept: int
    """In how many of them it was in S^f."""
    selected: int
    """In how many rounds."""
    refused: int
    examples: int | None
    """The number of training samples; None if it is not known."""
    fault: str | None
    """None if it is not known, empty if there is none."""
    trusted: bool = False
    """Whether its labels are known to be right. It is never said to hurt."""

    @property
    def evidence(self) -> float | None:
        """The value in standard errors: the best order to look for bad clients in."""
        return None if self.value is None or not self.stderr else self.value / self.stderr


def client_rows(records: Sequence[Mapping[str, Any]], table: ClientTable | None) -> list[ClientRow]:
    """One row per client that took part, lowest value first; clients without a value come last."""
    counts = {part: Counter[int]() for part in ("considered", "kept", "selected", "refused")}
    latest: dict[int, Mapping[str, Any]] = {}
    for record in records:
        counts["considered"].update(set(record["considered"]))
        counts["kept"].update(set(record["filtered"] or ()) if record["did_filter"] else ())
        counts["selected"].update(set(record["selected"]))
        counts["refused"].update(map(int, record["refused"]))
        latest |= {value["client"]: value for value in record["values"]}
    faults_known = table is not None and bool(table.noisy.any())
    rows = []
    clients = sorted(set().union(*counts.values()))
    numbers = ("mean", "mean_stderr", "update", "update_stderr")
    measured = [Estimate(*(latest.get(k, {}).get(number) for number in numbers)) for k in clients]
    trusted = [table is not None and k < len(table) and bool(table.trusted[k]) for k in clients]
    judged = verdicts(measured, trusted)
    for k, (value, stderr, *_), verdict, is_trusted in zip(clients, measured, judged, trusted, strict=True):
        known = table is not None and k < len(table)
        rows.append(
            ClientRow(
                id=k,
                name=str(table.names[k]) if table is not None and known else str(k),
                value=value,
                stderr=stderr,
                verdict=verdict,
                **{part: count[k] for part, count in counts.items()},
                examples=int(table.num_train[k]) if table is not None and known else None,
                fault=str(table.fault[k]) if table is not None and known and faults_known else None,
                trusted=is_trusted,
            )
        )
    return sorted(rows, key=lambda row: math.inf if row.value is None else row.value)


class Estimate(NamedTuple):
    """The running estimates of a client."""

    value: float | None
    stderr: float | None
    update: float | None
    """How much better it is than no update at all."""
    update_stderr: float | None


def verdicts(estimates: Sequence[Estimate], trusted: Sequence[bool] = ()) -> list[Verdict]:
    """Whether each client hurts or helps. A client hurts if its value is below 0, which means worse than a typical
    client, and if it is also worse than no update at all: a healthy client with few samples is only the former.
    A trusted client is never said to hurt: its labels are known to be right, and much of its data is held out.

    Among 100 healthy clients, five have a 95 % interval that excludes 0. So the tests are corrected for their number:
    at most 5 % of the verdicts "hurts" and "helps" are expected to be wrong (Benjamini and Hochberg).
    """
    from scipy.stats import false_discovery_control, norm  # it takes a second to import, in every worker process

    z = [each.value / each.stderr for each in estimates if each.value is not None and each.stderr]
    sure = iter(false_discovery_control(2 * norm.sf(np.abs(z))) < LEVEL if z else [])

    def verdict(each: Estimate, is_trusted: bool) -> Verdict:
        if each.value is None or not each.stderr:
            return "not measured"
        if not next(sure):
            return "cannot tell"
        if each.value > 0:
            return "helps"
        update, error = each.update, each.update_stderr
        better_than_nothing = update is not None and update >= -ONE_SIDED * (error or 0.0)
        return "cannot tell" if better_than_nothing or is_trusted else "hurts"

    known = trusted or [False] * len(estimates)
    return [verdict(each, is_trusted) for each, is_trusted in zip(estimates, known, strict=True)]


@dataclass(frozen=True)
class Detection:
    """How well the values find the clients that are known to be faulty."""

    auc: float
    """The chance that a faulty client has less evidence in its favour than a healthy one. 0.5 is guessing."""
    precision: float | None
    """Of the clients that hurt by the verdict, the share that is faulty; None if there are none."""
    recall: float
    """Of the faulty clients, the share whose verdict is that they hurt."""


def detection(rows: Sequence[ClientRow]) -> Detection | None:
    """None unless both faulty and healthy clients are known and have values."""
    valued = [row for row in rows if row.evidence is not None and row.fault is not None]
    faulty = np.array([bool(row.fault) for row in valued], dtype=bool)
    area = auc([row.evidence or 0.0 for row in valued], faulty.tolist())
    hurts = np.array([row.verdict == "hurts" for row in valued], dtype=bool)
    if area is None:
        return None
    return Detection(area, float(faulty[hurts].mean()) if hurts.any() else None, float(hurts[faulty].mean()))
