"""The state of every client in every round of a run, as a map and as counts, the clients' values, and the decisions of
each filter round."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from filfl.report.measures import gain_on_V_of
from filfl.report.series import rounded
from filfl.report.values import NOT_MEASURED, detection_sentence, hurting_sentence
from filfl.runs.clients import ClientRow, Z, client_rows, detection
from filfl.runs.reader import Run
from filfl.runs.summary import CLIENT_TESTS

AWAY, AVAILABLE, FILTERED_OUT, IN, SELECTED, REFUSED = range(6)
"""The states of a client in a round. AVAILABLE: not considered by the filter so far. IN: may be selected."""
MOST_SHOWN = 1000
"""A map shows at most this many clients: those most often considered, selected or refused. So does the chart of values:
those whose values are clearest."""
MOST_DECISIONS = 300_000
"""A page holds at most this many filter decisions, and as many values. Runs with more than their share omit filter
rounds evenly."""


def client_map(run: Run) -> dict[str, Any]:
    """The map, as one string of digits per client, and the counts of the table beside it."""
    counts = {part: rounds_in(run, part) for part in ("considered", "selected", "refused", "kept")}
    involved = counts["considered"] + counts["selected"] + counts["refused"]
    named = involved.keys() | {k for record in run.records for k in record["available"] or ()}
    known = run.clients.seen() if run.clients else sorted(named)
    # The sort is stable: of clients that are equally involved, the first ones are shown.
    shown = np.array(sorted(sorted(known, key=lambda k: -involved[k])[:MOST_SHOWN]), dtype=np.int64)
    available, all_listed = np.zeros(len(shown), dtype=np.int64), True
    cells = np.full((len(shown), len(run.records)), AWAY, dtype=np.uint8)
    considered: set[int] = set()
    for cell, record in zip(cells.T, run.records, strict=True):
        here = run.available(record)
        all_listed = all_listed and here is not None
        present = np.isin(shown, record["selected"] if here is None else here)
        available += present
        cell[present] = AVAILABLE
        considered = set(record["considered"]) if record["did_filter"] else considered
        if record["filtered"] is None:
            cell[present] = IN
        else:
            cell[present & np.isin(shown, list(considered.difference(record["filtered"])))] = FILTERED_OUT
            cell[np.isin(shown, record["filtered"])] = IN
        cell[np.isin(shown, record["selected"])] = SELECTED
        cell[np.isin(shown, list(_clients_in(record, "refused")))] = REFUSED
    texts = (cells + ord("0")).astype(np.uint8)
    clients = run.clients
    return {
        "of": len(known),
        "map": [row.tobytes().decode("ascii") for row in texts],
        "ids": shown.tolist(),
        "names": [str(name) for name in clients.names[shown]] if clients else [str(k) for k in shown],
        "sizes": clients.num_train[shown].tolist() if clients else None,
        "fault": clients.fault[shown].tolist() if clients else None,
        "available": available.tolist() if all_listed else None,
        **{part: [rounds[k] for k in shown.tolist()] for part, rounds in counts.items()},
        "trusted": clients.trusted[shown].tolist() if clients else None,
        **_own_tests(run, shown.tolist()),
    }


def _own_tests(run: Run, shown: Sequence[int]) -> dict[str, Any]:
    """The final model's accuracy on the test samples of each client, and their number; None where there are none."""
    stored = (run.summary or {}).get(CLIENT_TESTS)
    if not isinstance(stored, Mapping):
        return {"accuracy": None}
    found = {k: (n, each) for k, n, each in zip(stored["id"], stored["samples"], stored["accuracy"], strict=True)}
    tests = [found.get(k, (None, None)) for k in shown]
    return {"accuracy": [_short(each) for _, each in tests], "tests": [n for n, _ in tests]}


def client_values(run: Run, most: int) -> dict[str, Any]:
    """The clients of a run with their values, lowest first, and the values of every filtering by client."""
    rows = client_rows(run.records, run.clients)
    if all(row.value is None for row in rows):
        return {"sentence": NOT_MEASURED, "rows": []}
    shown = _clearest(rows)
    history: dict[int, list[list[Any]]] = {row.id: [] for row in shown}
    for record in _evenly([record for record in run.records if record["values"]], "values", most):
        for value in record["values"]:
            if value["client"] in history:
                once, running = _interval(value["stderr"]), _interval(value["mean_stderr"])
                numbers = [_short(value["value"]), once, _short(value["mean"]), running]
                history[value["client"]].append([record["round"], *numbers])
    found = detection(rows)
    return {
        "sentence": hurting_sentence(rows),
        "detection": f"{detection_sentence(found)}." if found else "",
        "of": len(rows),
        "rows": [_row(row) for row in shown],
        "history": history,
    }


def _row(row: ClientRow) -> dict[str, Any]:
    made = {**asdict(row), "value": _short(row.value), "interval": _interval(row.stderr)}
    del made["stderr"]
    return made


def _clearest(rows: Sequence[ClientRow]) -> list[ClientRow]:
    """The clients with the clearest values, lowest value first."""
    clear = sorted(range(len(rows)), key=lambda i: -abs(rows[i].evidence or 0.0))[:MOST_SHOWN]
    return [rows[i] for i in sorted(clear)]


def decisions(run: Run, most: int) -> list[list[Any]]:
    """Per filter round: its number, the rewards and gains, and in the order of the clients their ids, a, b, p and
    whether each was kept. The rewards and gains are R(all), R(S^f), the gain on V itself, the gain, and its interval.
    """
    made = []
    for record in _evenly([record for record in run.records if record["trace"]], "trace", most):
        trace = record["trace"]
        gains = [_short(gain_on_V_of(record)), _short(record["honest_gain"]), _interval(record["honest_gain_stderr"])]
        rewards = [_short(record["reward_all"]), _short(record["reward_filtered"]), *gains]
        numbers = [[_short(step[key]) for step in trace] for key in ("a", "b", "p")]
        kept = "".join("1" if step["kept"] else "0" for step in trace)
        made.append([record["round"], rewards, [step["client"] for step in trace], *numbers, kept])
    return made


def rounds_in(run: Run, part: str) -> Counter[int]:
    """In how many rounds each client was considered, kept, selected or refused."""
    return Counter(k for record in run.records for k in set(_clients_in(record, part)))


def _clients_in(record: Mapping[str, Any], part: str) -> Iterable[int]:
    if part == "kept":
        return record["filtered"] or () if record["did_filter"] else ()
    return map(int, record[part])  # `refused` is a JSON object, whose keys are text


def _evenly(records: Sequence[Mapping[str, Any]], part: str, most: int) -> Sequence[Mapping[str, Any]]:
    """Every n-th of these records, so that their lists together have about `most` entries."""
    entries = sum(len(record[part]) for record in records)
    return records[:: max(1, -(-entries // max(most, 1)))]


def _interval(stderr: float | None) -> float | None:
    """Half the width of the 95 % interval."""
    return None if stderr is None else _short(Z * stderr)


def _short(value: float | None) -> float | None:
    """Four digits, which keeps the page small."""
    return None if value is None else rounded(value, 4)
