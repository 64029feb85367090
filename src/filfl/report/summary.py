"""A comparison as one small JSON file: all that a page or a picture about it needs."""

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from filfl.compare import Plan
from filfl.config import dotted_keys, identity_of
from filfl.report.curves import Series, thinned
from filfl.report.figures import Drawn
from filfl.report.statistics import ArmStatistics, Spread, Tested
from filfl.runs import Run
from filfl.runs.store import SUMMARY

POINTS = 60
"""At most so many of a curve."""
SMALL = re.compile(r"\[\s+([^][{}]*?)\s+\]")


def summary_of(
    plan: Plan,
    runs: Mapping[str, Sequence[Run]],
    statistics: Sequence[ArmStatistics],
    drawn: Drawn,
    target: float,
) -> dict[str, Any]:
    """The content of summary.json."""
    configs = {arm: facts_of(seeds[0].config) for arm, seeds in runs.items()}
    common = dict(set.intersection(*({(k, json.dumps(v)) for k, v in c.items()} for c in configs.values())))
    ended = [json.loads((run.directory / SUMMARY).read_bytes()) for seeds in runs.values() for run in seeds]
    levels = {arm.name: list(arm.levels) for arm in plan.arms}
    return {
        "title": plan.title,
        **plan.facts,
        "seeds": list(plan.seeds),
        "rounds": max(len(run.records) for seeds in runs.values() for run in seeds),
        "target": target,
        "seconds": round(sum({end["run"]: end["seconds"] for end in ended}.values()), 1),
        "versions": ended[0]["versions"],
        "config": {key: json.loads(value) for key, value in sorted(common.items())},
        "arms": [
            {
                **dataclasses.asdict(arm),
                "levels": levels[arm.arm],
                "config": {key: value for key, value in sorted(configs[arm.arm].items()) if key not in common},
                "curves": {name: dataclasses.asdict(thinned(s, POINTS)) for name, s in drawn[arm.arm].items()},
            }
            for arm in statistics
        ],
    }


def to_text(summary: Mapping[str, Any]) -> str:
    """JSON that a person can read and compare: indented, with lists of numbers on one line each."""
    return SMALL.sub(lambda found: f"[{' '.join(found[1].split())}]", json.dumps(_rounded(summary), indent=1)) + "\n"


def drawn_in(summary: Mapping[str, Any]) -> dict[str, dict[str, Series]]:
    """The curves of a summary, to draw them again."""
    return {
        arm["arm"]: {name: Series(*map(tuple, curve.values())) for name, curve in arm["curves"].items()}
        for arm in summary["arms"]
    }


def statistics_in(summary: Mapping[str, Any]) -> list[ArmStatistics]:
    """The numbers of a summary, to make the tables again."""
    return [
        ArmStatistics(
            arm=arm["arm"],
            against=arm["against"],
            measures={name: _spread(given) for name, given in arm["measures"].items()},
            accuracy_at={int(t): given and _spread(given) for t, given in arm["accuracy_at"].items()},
            rounds_to_target=arm["rounds_to_target"] and _spread(arm["rounds_to_target"]),
            uplink_to_target=arm["uplink_to_target"] and _spread(arm["uplink_to_target"]),
            tests={name: Tested(**given) for name, given in arm["tests"].items()},
        )
        for arm in summary["arms"]
    ]


def _spread(given: Mapping[str, Any]) -> Spread:
    return Spread(**{**given, "values": tuple(given["values"])})


def facts_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config of an arm: without what does not change the result, and what every seed has of its own."""
    table = identity_of(config)
    return dotted_keys({key: value for key, value in table.items() if key not in ("name", "seed", "checkpoint")})


def _rounded(value: Any) -> Any:
    """Six digits of every number: more than any of them means."""
    if isinstance(value, Mapping):
        return {key: _rounded(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(inner) for inner in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value
