"""What the runs of a section allow to say: whether they are finished, and whether their methods can be ranked."""

from collections.abc import Iterable, Sequence
from typing import Any, Literal

from filfl.config.config import dotted_keys
from filfl.config.schema import show
from filfl.display import some
from filfl.report.html.collect import ArmRuns, Section

TASK = ("data.", "attack.", "evaluate.primary", "evaluate.better")
"""The keys, or their beginnings, in which methods must agree to be ranked: what they learn, and how they are judged.
They must also have the same number of rounds."""
MOST_KEYS = 6
"""How many keys a sentence names."""

TestedBy = Literal["test set", "nodes", "server", "nodes or server"]
"""Where the results are from: the simulator's test set, or on Flower the nodes or the server's evaluate function."""


def settings(section: Section) -> dict[str, Any]:
    """The config keys that all arms share, and those that differ, with one value per arm (None if not set). Values are
    as in TOML. The page shows name and seed elsewhere."""
    tables = list(map(_settings, section.arms))
    known = [table for table in tables if table]
    keys = dict.fromkeys(key for table in known for key in table)
    shared = {key: known[0][key] for key in keys if all(table.get(key) == known[0].get(key) for table in known)}
    differing = [[key, [table.get(key) for table in tables]] for key in keys if key not in shared]
    return {"shared": list(shared.items()), "differing": differing}


def comparable(arms: Iterable[ArmRuns]) -> bool:
    """Whether the final values of these arms can be ranked: all runs are finished, with one task and one length."""
    arms = list(arms)
    return (
        all(run is None or run.finished for arm in arms for run in arm.runs)
        and not unlike_tasks(arms)
        and len({run.rounds for arm in arms for run in arm.started}) < 2
    )


def ranked(section: Section) -> bool:
    """Whether the methods of a section are ranked."""
    return section.finished and comparable(section.arms)


def unlike_tasks(arms: Sequence[ArmRuns]) -> list[str]:
    """The keys of data, attack and primary metric in which arms differ."""
    tables = [table for table in map(_settings, arms) if table]
    keys = dict.fromkeys(key for table in tables for key in table if key.startswith(TASK))
    return [key for key in keys if len({table.get(key) for table in tables}) > 1]


def reasons(section: Section) -> list[str]:
    """Why the methods of a section are not ranked, one sentence each; none if they are."""
    found = []
    if not section.finished:
        done, total = sum(run.finished for run in section.started), len(section.started) + section.missing
        found.append(
            "The run is not finished."
            if total == 1
            else f"{done} of {total} runs {'is' if done == 1 else 'are'} finished, so there is no verdict yet."
        )
    if len(lengths := {arm.name: arm.started[0].rounds for arm in section.arms if arm.started}) > 1:
        if len({*lengths.values()}) > 1:
            listed = some([f"{name}: {rounds}" for name, rounds in lengths.items()], MOST_KEYS)
            found.append(
                f"The methods have different numbers of rounds ({listed}), so their final values are not ranked."
            )
        if keys := unlike_tasks(section.arms):
            found.append(
                f"The methods have different tasks ({some(keys, MOST_KEYS)}), so they are not ranked together."
            )
    return found


def remarks(section: Section) -> list[str]:
    """What a reader of a ranking must know: how runs that were not planned together differ, and different lengths."""
    found = []
    if not section.planned and len(section.arms) > 1:
        keys = [key for key, _ in settings(section)["differing"]]
        differ = f"differ in {some(keys, MOST_KEYS)}" if keys else "have the same settings"
        found.append(f"These runs were not made by one comparison; they {differ}.")
        if any(run is None for arm in section.arms for run in arm.runs):
            listed = [f"{arm.name} {', '.join(str(run.seed) for run in arm.started)}" for arm in section.arms]
            found.append(f"They have different seeds ({some(listed, MOST_KEYS)}).")
    rounds = [len(run.records) for run in section.started]
    if any(run.stopped is not None for run in section.started) and min(rounds) < max(rounds):
        found.append(f"Runs stopped early, so they have different lengths: {min(rounds)} to {max(rounds)} rounds.")
    return found


def tested_by(section: Section) -> TestedBy:
    """Who tested the models, by the records: those of a run on Flower name it."""
    found = {record.get("tested_by") for run in section.started for record in run.records} - {None}
    if not found:
        return "test set"
    return "nodes" if found == {"nodes"} else "server" if found == {"server"} else "nodes or server"


def _settings(arm: ArmRuns) -> dict[str, str]:
    """The settings of an arm as in TOML, without name and seed."""
    table = dotted_keys(arm.started[0].table) if arm.started else {}
    return {key: show(value) for key, value in table.items() if key not in ("name", "seed")}
