"""What an arm was set to, where arms differ, on what it ran, and where the time went."""

from collections.abc import Mapping
from typing import Any

from filfl.config import dotted_keys
from filfl.options import show
from filfl.report.collect import Section
from filfl.report.stored import StoredRun

ROUND = "round"


def settings(section: Section) -> dict[str, Any]:
    """The keys that all arms share, and those in which they differ: one value an arm, null where it has none."""
    tables = [_flat(arm.begun[0].table) if arm.begun else None for arm in section.arms]
    known = [table for table in tables if table]
    keys = dict.fromkeys(key for table in known for key in table)
    shared = {key: known[0][key] for key in keys if all(table.get(key) == known[0].get(key) for table in known)}
    differing = [[key, [table.get(key) if table else None for table in tables]] for key in keys if key not in shared]
    return {"shared": list(shared.items()), "differing": differing}


def run_facts(run: StoredRun) -> dict[str, Any]:
    """What the table of runs tells of one: how far it is, on what it ran, seconds by phase."""
    versions = run.summary.get("versions") if run.summary else None
    return {
        "seed": run.seed,
        "done": len(run.records),
        "rounds": run.rounds,
        "finished": run.finished,
        "place": str(run.directory),
        "versions": {str(k): str(v) for k, v in versions.items()} if isinstance(versions, Mapping) else {},
        "seconds": _seconds(run),
    }


def _seconds(run: StoredRun) -> dict[str, float]:
    total: dict[str, float] = {}
    for line in run.times:
        for phase, seconds in line.items():
            if phase != ROUND:
                total[phase] = total.get(phase, 0.0) + seconds
    return {phase: round(seconds, 3) for phase, seconds in total.items()}


def _flat(table: Mapping[str, Any]) -> dict[str, str]:
    """The config as dotted keys and values as they stand in TOML; name and seed are said elsewhere."""
    return {key: show(value) for key, value in dotted_keys(table).items() if key not in ("name", "seed")}
