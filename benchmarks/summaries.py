"""The stored summaries of docs/results: how they are read, and how new seeds are added to them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from filfl.comparison.figures import run_key
from filfl.config.config import Config
from filfl.errors import ConfigError
from filfl.report.comparison import split_configs
from filfl.report.series import Series
from filfl.report.statistics import ArmStatistics, Spread, Tested, compared, standard_deviation

Summary = Mapping[str, Any]
Arm = Mapping[str, Any]


def merged(stored: Summary, new: Summary) -> tuple[dict[str, Any], list[str]]:
    """The arms of a new summary with the seeds of the stored one added, and what was left out, in words.

    Seeds are added arm by arm, and only if the arm has the same config now: seeds of two configs are never mixed. A
    seed that both have counts once, as it is in the new summary.
    """
    before = {arm["arm"]: arm for arm in stored["arms"]}
    arms, notes = [], []
    for arm in new["arms"]:
        old = before.get(arm["arm"])
        if old is not None and config_key(stored, old) == config_key(new, arm) is not None:
            arms.append((old, arm))
            continue
        arms.append((None, arm))
        if old is not None:
            notes.append(f"{new['name']}, {arm['arm']}: the config has changed; the stored seeds are left out")
    gone = before.keys() - {arm["arm"] for arm in new["arms"]}
    notes += [f"{new['name']}, {arm}: the arm does not exist any more; it is left out" for arm in sorted(gone)]
    seeds = sorted({seed for pair in arms for arm in pair if arm for seed in arm["seeds"]})
    same_target = stored["target"] == new["target"] or not any(old for old, _ in arms)
    joined = [_joined_arm(old, stored["seeds"], arm, new["seeds"], seeds, same_target) for old, arm in arms]
    by_name = {arm["arm"]: arm for arm in joined}
    for arm in joined:
        arm["tests"] = _tests(arm, by_name[arm["against"]])
    kept = sorted({seed for old, _ in arms if old for seed in old["seeds"]} - set(new["seeds"]))
    configs = {arm["arm"]: {**new["config"], **arm["config"]} for arm in new["arms"]}
    common, own = split_configs(configs)
    for arm in joined:
        arm["config"] = own[arm["arm"]]
    return {
        **new,
        "set": {key: value for key, value in new["set"].items() if key != "seed"},
        "seeds": seeds,
        "target": new["target"] if same_target else None,
        "made": [
            *({**made, "seeds": part} for made in stored["made"] if (part := [s for s in made["seeds"] if s in kept])),
            *new["made"],
        ],
        "config": common,
        "arms": joined,
    }, notes


def config_key(summary: Summary, arm: Arm) -> str | None:
    """A hash of the config of an arm without its seed; None if the config is not valid any more.

    A key that did not exist when a summary was made has its default value, which changes nothing.
    """
    try:
        return run_key(Config.read({**summary["config"], **arm["config"]}))
    except ConfigError:
        return None


def _joined_arm(
    old: Arm | None, old_seeds: Sequence[int], new: Arm, new_seeds: Sequence[int], seeds: Sequence[int], target: bool
) -> dict[str, Any]:
    """The arm with the values of both, in the order of `seeds`. target: whether both have the same target."""
    before: Arm = old or {"measures": {}, "accuracy_at": {}, "curves": {}, "seeds": []}
    made = sorted({*before["seeds"], *new["seeds"]})

    def joined(a: Mapping[str, Any] | None, b: Mapping[str, Any] | None) -> dict[str, Any] | None:
        of_old, of_new = (
            dict(zip(of, part["values"], strict=True)) if part else {} for of, part in ((old_seeds, a), (new_seeds, b))
        )
        found = {seed: of_old.get(seed) for seed in before["seeds"]} | {seed: of_new.get(seed) for seed in new["seeds"]}
        values = [found.get(seed) for seed in seeds]
        known = [value for value in values if value is not None]
        if not known:
            return None
        spread = {"mean": float(np.mean(known)), "std": standard_deviation(known), "count": len(known)}
        return {**spread, "of": len(made), "values": values}

    names = dict.fromkeys([*new["measures"], *before["measures"]])
    measures = {name: joined(before["measures"].get(name), new["measures"].get(name)) for name in names}
    return {
        **new,
        "seeds": made,
        "measures": {name: spread for name, spread in measures.items() if spread},
        "accuracy_at": {
            t: joined(before["accuracy_at"].get(t), at)
            for t, at in new["accuracy_at"].items()
            if old is None or t in before["accuracy_at"]
        },
        **{
            key: joined(before.get(key), new[key]) if target else None
            for key in ("rounds_to_target", "uplink_to_target")
        },
        "curves": {
            name: _joined_curve(before["curves"].get(name), before["seeds"], curve, new["seeds"])
            for name, curve in new["curves"].items()
        },
    }


def _joined_curve(
    old: Mapping[str, Any] | None, old_seeds: Sequence[int], new: Mapping[str, Any], new_seeds: Sequence[int]
) -> Mapping[str, Any]:
    """Mean and standard deviation over the seeds of both. If these overlap, the curve with more seeds is taken, because
    the seeds of a curve cannot be told apart."""
    if old is None:
        return new
    if set(old_seeds) & set(new_seeds) or old["rounds"] != new["rounds"]:
        return new if len(new_seeds) >= len(old_seeds) else old
    parts = [(len(of), np.array(c["mean"]), np.array(c["std"])) for of, c in ((old_seeds, old), (new_seeds, new))]
    n = sum(count for count, _, _ in parts)
    mean = sum((count * of for count, of, _ in parts), np.zeros(len(new["rounds"]))) / n
    squares = sum(((k - 1) * std**2 + k * (of - mean) ** 2 for k, of, std in parts), np.zeros(len(mean)))
    return {"rounds": new["rounds"], "mean": mean.tolist(), "std": np.sqrt(squares / (n - 1)).tolist()}


def _tests(arm: Arm, against: Arm) -> dict[str, Any]:
    if arm["arm"] == against["arm"]:
        return {}
    shared = [name for name in arm["measures"] if name in against["measures"]]
    tested = {name: compared(arm["measures"][name]["values"], against["measures"][name]["values"]) for name in shared}
    return {name: vars(found) for name, found in tested.items()}


def curves_in(summary: Summary) -> dict[str, dict[str, Series]]:
    """The curves in a summary, by arm and name."""
    return {
        arm["arm"]: {name: Series(*map(tuple, curve.values())) for name, curve in arm["curves"].items()}
        for arm in summary["arms"]
    }


def statistics_in(summary: Summary) -> list[ArmStatistics]:
    """The statistics in a summary."""
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
