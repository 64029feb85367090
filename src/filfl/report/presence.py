"""Who was there, judged, kept, chosen and refused: the client-by-round map of a run, and each filtering's trace."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from filfl.availability.base import Ids
from filfl.report.stored import StoredRun

AWAY, AVAILABLE, FILTERED_OUT, IN, SELECTED, REFUSED = range(6)
"""What a client was in a round: a cell of the map. AVAILABLE has not been judged by the filter, IN may be chosen."""
MOST_SHOWN = 1000
"""Clients in a map: those that were considered, selected or refused most often, where there are more."""
TRACED = 300_000
"""Decisions in a whole page; of a run with more than its share, filterings at equal distances are kept."""


def presence(run: StoredRun) -> dict[str, Any]:
    """The map, one text of digits a client, and the counts of the table beside it."""
    counts = {
        part: _counted(set(record[part]) for record in run.records) for part in ("considered", "selected", "refused")
    }
    kept = _counted(kept_of(record) for record in run.records)
    known = np.arange(len(run.clients)) if run.clients else _ids(_listed(run))
    shown = _most_involved(known, counts)
    available, all_listed = np.zeros(len(shown), dtype=np.int64), True
    cells = np.full((len(shown), len(run.records)), AWAY, dtype=np.uint8)
    judged: set[int] = set()
    for column, record in enumerate(run.records):
        here = available_in(record, len(known))
        all_listed = all_listed and here is not None
        present = _places(shown, record["selected"] if here is None else here)
        available[present] += 1
        cells[present, column] = AVAILABLE
        judged = set(record["considered"]) if record["did_filter"] else judged
        if record["filtered"] is None:
            cells[present, column] = IN
        else:
            out = judged.difference(record["filtered"])
            cells[np.intersect1d(present, _places(shown, sorted(out))), column] = FILTERED_OUT
            cells[_places(shown, record["filtered"]), column] = IN
        cells[_places(shown, record["selected"]), column] = SELECTED
        cells[_places(shown, list(record["refused"])), column] = REFUSED
    texts = (cells + ord("0")).astype(np.uint8)
    clients = run.clients
    return {
        "of": len(known),
        "first": run.records[0]["round"] if run.records else 1,
        "map": [row.tobytes().decode("ascii") for row in texts],
        "ids": shown.tolist(),
        "names": [str(name) for name in clients.names[shown]] if clients else [str(k) for k in shown],
        "sizes": clients.num_train[shown].tolist() if clients else None,
        "fault": clients.fault[shown].tolist() if clients else None,
        "available": available.tolist() if all_listed else None,
        "kept": [kept.get(k, 0) for k in shown.tolist()],
        **{part: [counted.get(k, 0) for k in shown.tolist()] for part, counted in counts.items()},
        "why": {str(k): reason for record in run.records for k, reason in record["refused"].items()},
    }


def traces(run: StoredRun, budget: int) -> list[list[Any]]:
    """Each filtering: its round, R(all), R(S^f), and for the clients in their order a, b, p and whether kept."""
    traced = [record for record in run.records if record["trace"]]
    steps = sum(len(record["trace"]) for record in traced)
    every = max(1, -(-steps // max(budget, 1)))
    made = []
    for record in traced[::every]:
        clients, a, b, p, kept = zip(*record["trace"], strict=True)
        decisions = "".join("1" if yes else "0" for yes in kept)
        rewards = [_short(record["reward_all"]), _short(record["reward_filtered"])]
        made.append(
            [record["round"], *rewards, clients, *(list(map(_short, values)) for values in (a, b, p)), decisions]
        )
    return made


def kept_of(record: Mapping[str, Any]) -> Iterable[int]:
    """Whom the filtering of a round kept; nobody where it did not filter."""
    return record["filtered"] or () if record["did_filter"] else ()


def available_in(record: Mapping[str, Any], num_clients: int) -> Ids | None:
    """S_t; None where the record does not list it and it is not everybody."""
    if record["available"] is not None:
        return _ids(record["available"])
    return np.arange(num_clients) if record["num_available"] == num_clients else None


def may_be_chosen(record: Mapping[str, Any], num_clients: int) -> Ids | None:
    """The clients out of which A_t was chosen, where the record tells."""
    return available_in(record, num_clients) if record["filtered"] is None else _ids(record["filtered"])


def _listed(run: StoredRun) -> list[int]:
    parts = ("available", "considered", "selected", "refused")
    return sorted({k for record in run.records for part in parts for k in record[part] or ()})


def _counted(groups: Iterable[Iterable[int]]) -> dict[int, int]:
    ids, counts = np.unique(_ids([k for group in groups for k in group]), return_counts=True)
    return dict(zip(ids.tolist(), counts.tolist(), strict=True))


def _most_involved(known: Ids, counts: Mapping[str, Mapping[int, int]]) -> Ids:
    if len(known) <= MOST_SHOWN:
        return known
    involved = np.zeros(len(known), dtype=np.int64)
    for counted in counts.values():
        ids = _ids(list(counted))
        involved[_places(known, ids)] += _ids([counted[k] for k in known[_places(known, ids)].tolist()])
    return np.sort(known[np.argsort(-involved, kind="stable")[:MOST_SHOWN]])


def _places(shown: Ids, ids: Iterable[int] | Ids) -> Ids:
    """The rows of those of the ids that are shown."""
    wanted = _ids(ids)
    if not len(shown):
        return wanted[:0]
    rows = np.searchsorted(shown, wanted).clip(max=len(shown) - 1).astype(np.int64)
    there: Ids = rows[shown[rows] == wanted]
    return there


def _ids(values: Iterable[int] | Ids) -> Ids:
    return values if isinstance(values, np.ndarray) else np.array(list(values), dtype=np.int64)


def _short(value: float | None) -> float | None:
    """Four digits are all that is read, and a page has many of them."""
    return None if value is None else float(f"{value:.4g}")
