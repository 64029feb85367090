"""The top of the page: which arm is best, by how much, at what cost, and which clients hurt."""

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from filfl.core.evidence import PREFIX
from filfl.report.formatting import NONE, count, megabytes, p_equals, percent, spread_text
from filfl.report.html.clients import rounds_in
from filfl.report.html.collect import Section
from filfl.report.html.events import alike
from filfl.report.measures import SHARES, key_of, measure_named, primary_of
from filfl.report.statistics import LEVEL, ArmStatistics, compare_arms, default_target
from filfl.report.table import change_text, final_difference
from filfl.report.values import MOST_NAMED, hurting_sentence, verdicts
from filfl.runs.clients import client_rows
from filfl.runs.metrics import LOSS, Primary
from filfl.runs.reader import Run


def measure(section: Section) -> tuple[list[ArmStatistics], float]:
    """The statistics of the arms, and the target. Arms with unfinished runs are not tested."""
    primary = primary_of(section.started)
    records = {arm.name: [run.records if run else [] for run in arm.runs] for arm in section.arms}
    against = {arm.name: arm.against for arm in section.arms}
    target = default_target(records, primary) if section.target is None else section.target
    finished = {arm.name: all(run is not None and run.finished for run in arm.runs) for arm in section.arms}
    statistics = [
        arm if finished[arm.arm] and finished[arm.against] else dataclasses.replace(arm, tests={})
        for arm in compare_arms(records, against, target, at=(), primary=primary)
    ]
    return statistics, target


def headline(section: Section, statistics: Sequence[ArmStatistics], target: float) -> dict[str, Any]:
    """A sentence, one more for each other group of arms, up to four tiles, and the run whose clients are named."""
    arms = {arm.arm: arm for arm in statistics}
    primary = primary_of(section.started)
    winner = best(statistics, primary)
    if winner is None:
        return {"sentence": "No round has been tested yet.", "more": [], "tiles": [], "run": None}
    rival = _rival(winner, arms, primary)
    cost, cost_tile = _cost(winner, rival, target, primary)
    sentences = [_result(winner, rival, primary), cost]
    tiles = [_tile("Best method", winner.arm, _score(winner, primary)) | {"arm": winner.arm}]
    if rival:
        tiles += [_difference_tile(winner, rival, primary), cost_tile]
    if filtering := _filtering(section, arms, winner, primary):
        sentences.append(filtering[0])
        tiles.append(filtering[1])
    valued = _valued_run(section, arms, winner, primary)
    if valued:
        arm, run = valued
        where = f" ({arm}, seed {run.seed})" if len(section.started) > 1 else ""
        sentences.append(hurting_sentence(client_rows(run.records, run.clients), where))
    progress = ""
    if not section.finished:
        done, total = sum(run.finished for run in section.started), len(section.started) + section.missing
        progress = f"So far, with {done} of {count(total, 'run')} finished: "
    return {
        "sentence": progress + " ".join(filter(None, sentences)),
        "more": [*_other_groups(winner, arms, primary), *_tested_on(section)],
        "tiles": tiles,
        "run": {"arm": valued[0], "seed": valued[1].seed} if valued else None,
    }


def _tested_on(section: Section) -> list[str]:
    """On whose samples the results were measured, by the summaries of finished runs."""
    found = {str(run.summary["test_set"]): None for run in section.started if run.summary and "test_set" in run.summary}
    return [f"Tested on {' or '.join(found)}."] if found else []


def filtering_set_warnings(section: Section) -> list[str]:
    """The warnings about the filtering set in the notes of all runs. Those that differ only in numbers are one, with
    the numbers of the first run."""
    found: dict[str, tuple[str, list[str]]] = {}
    for arm in section.arms:
        for run in arm.started:
            notes = dict.fromkeys(note for record in run.records for note in record["notes"])
            for text in (note.removeprefix(PREFIX) for note in notes if note.startswith(PREFIX)):
                found.setdefault(alike(text), (text, []))[1].append(f"{arm.name}, seed {run.seed}")
    warnings = []
    for text, (first, *others) in found.values():
        more = f" and {count(len(others), 'more run')}" if others else ""
        where = f" ({first}{more})" if len(section.started) > 1 else ""
        warnings.append(f"Filtering set{where}: {text}.")
    return warnings


def problems_of(section: Section) -> list[str]:
    """What is missing, unfinished or damaged, and where."""
    notes = list(section.problems)
    for problem in dict.fromkeys(problem for run in section.started for problem in run.problems):
        first, *others = [run for run in section.started if problem in run.problems]
        notes.append(f"{first.directory}{f' and {len(others)} more' if others else ''}: {problem}")
    if waiting := [run for run in section.started if not run.finished]:
        named = [f"{run.name} seed {run.seed} ({len(run.records)} of {run.rounds} rounds)" for run in waiting[:6]]
        more = f" and {len(waiting) - 6} more" if len(waiting) > 6 else ""
        notes.append(f"Not finished: {', '.join(named)}{more}.")
    for run in section.started:
        if run.stopped is not None:
            rounds = f"after {len(run.records)} of {run.rounds} rounds"
            notes.append(f"Stopped early: {run.name} seed {run.seed}, {rounds}: {run.stopped}.")
    if section.missing:
        notes.append(f"{count(section.missing, 'run')} not started.")
    return notes


def best(arms: Sequence[ArmStatistics], primary: Primary) -> ArmStatistics | None:
    """The arm with the best final value of the primary metric; None if no arm has one."""
    key, sign = key_of(primary), -1 if primary.lower else 1
    return max(
        (arm for arm in arms if key in arm.measures), key=lambda arm: sign * arm.measures[key].mean, default=None
    )


def _rival(winner: ArmStatistics, arms: dict[str, ArmStatistics], primary: Primary) -> ArmStatistics | None:
    """The arm that the winner is tested against. If that is itself, the best of the arms tested against the winner."""
    if winner.arm != winner.against:
        return arms[winner.against]
    return best([arm for arm in arms.values() if arm.against == winner.arm and arm is not winner], primary)


def _p(winner: ArmStatistics, rival: ArmStatistics, primary: Primary) -> float | None:
    return (winner if winner.against == rival.arm else rival).p_values(key_of(primary))[0]


def _score(arm: ArmStatistics, primary: Primary) -> str:
    """The final value of the primary metric, with its name."""
    key = key_of(primary)
    spread = arm.measures.get(key)
    if key in SHARES:
        return f"{percent(spread)} {measure_named(key).title}"
    named = measure_named(key)
    return f"a {named.title} of {spread_text(spread, named.form, between=' ± ')}"


def _ahead(difference: float, rival: ArmStatistics, primary: Primary) -> str:
    """10.0 points above plain, or 0.05 below plain."""
    size = f"{abs(100 * difference):.1f} points" if key_of(primary) in SHARES else f"{abs(difference):.3g}"
    return f"{size} {'below' if primary.lower else 'above'} {rival.arm}"


def _result(winner: ArmStatistics, rival: ArmStatistics | None, primary: Primary) -> str:
    score = f"{_score(winner, primary)} ({count(winner.measures[key_of(primary)].count, 'seed')})"
    if rival is None:
        return f"{winner.arm} reaches {score}."
    if (difference := final_difference(winner, rival, primary)) is None:
        return f"{winner.arm} is best with {score}; {rival.arm} has {_score(rival, primary)}."
    ahead, p = _ahead(difference, rival, primary), _p(winner, rival, primary)
    if p is None:
        return f"{winner.arm} is ahead with {score}, {ahead}; the difference was not tested."
    if p < LEVEL:
        return f"{winner.arm} wins with {score}, {ahead} ({p_equals(p)})."
    return f"{winner.arm} is ahead with {score}, {ahead}, which may be chance ({p_equals(p)})."


def goal_text(target: float, primary: Primary) -> str:
    """The target: 70 %, or f1 0.7."""
    if key_of(primary) in SHARES:
        return f"{100 * target:.3g} %"
    return f"{'test loss' if primary.name == LOSS else primary.name} {target:.3g}"


def _cost(
    winner: ArmStatistics, rival: ArmStatistics | None, target: float, primary: Primary
) -> tuple[str, dict[str, str]]:
    """A sentence and a tile about the rounds and the upload until the target."""
    goal, mine, theirs = goal_text(target, primary), _reached(winner), _reached(rival) if rival else None
    label = f"Upload to reach {goal}"
    if not mine:
        easier = "Raise" if primary.lower else "Lower"
        return "", _tile(label, "never reached", f"{easier} the target, or run more rounds")
    rounds, upload = mine
    sentence = f"It reaches {goal} after {rounds} and {upload} of upload"
    if rival is None:
        return f"{sentence}.", _tile(label, upload, rounds)
    if theirs is None:
        return f"{sentence}; {rival.arm} never does.", _tile(label, upload, f"{rounds}; {rival.arm} never reaches it")
    detail = f"{rounds}; {rival.arm} needs {theirs[1]} and {theirs[0]}"
    return f"{sentence}; {rival.arm} after {theirs[0]} and {theirs[1]}.", _tile(label, upload, detail)


def _reached(arm: ArmStatistics) -> tuple[str, str] | None:
    """The rounds and the upload until the target; None if no seed reached it."""
    rounds, sent = arm.rounds_to_target, arm.uplink_to_target
    if not rounds or not sent:
        return None
    missed = f" (in {rounds.count} of {rounds.of} seeds)" if rounds.count < rounds.of else ""
    return count(round(rounds.mean), "round") + missed, megabytes(sent.mean)


def _other_groups(winner: ArmStatistics, arms: dict[str, ArmStatistics], primary: Primary) -> list[str]:
    """One sentence for each other arm that arms are tested against."""
    sentences = []
    for base in dict.fromkeys(arm.against for arm in arms.values() if arm.arm != arm.against):
        group = [arm for arm in arms.values() if base in (arm.arm, arm.against)]
        leader = best(group, primary)
        if winner not in group and leader is not None and (rival := _rival(leader, arms, primary)) is not None:
            sentences.append(f"Among those tested against {base}: {_result(leader, rival, primary)}")
    return sentences


def _tile(label: str, value: str, detail: str) -> dict[str, str]:
    return {"label": label, "value": value, "detail": detail}


def _difference_tile(winner: ArmStatistics, rival: ArmStatistics, primary: Primary) -> dict[str, str]:
    difference, p = final_difference(winner, rival, primary), _p(winner, rival, primary)
    if p is None:
        test = "not tested (one seed, or unfinished runs)"
    else:
        test = p_equals(p) + (", a significant difference" if p < LEVEL else ", may be chance")
    unit = " points" if key_of(primary) in SHARES else ""
    value = f"{change_text(difference, primary)}{unit}" if difference is not None else NONE
    return _tile(f"Against {rival.arm}", value, f"{rival.arm}: {_score(rival, primary)}; {test}")


def _filtering(
    section: Section, arms: dict[str, ArmStatistics], winner: ArmStatistics, primary: Primary
) -> tuple[str, dict[str, str]] | None:
    """A sentence and a tile about what the filter of the winner kept, or that of the best arm that filters."""
    filters = {arm.name: arm for arm in section.arms if any(map(_filter_rounds, arm.started))}
    leader = winner if winner.arm in filters else best([arms[name] for name in filters], primary)
    if leader is None:
        return None
    runs = filters[leader.arm].started
    considered, kept = Counter[bool](), Counter[bool]()  # by whether the client is bad
    for run in runs:
        bad = set(np.flatnonzero(run.clients.noisy).tolist()) if run.clients else set()
        for totals, part in ((considered, "considered"), (kept, "kept")):
            for k, rounds in rounds_in(run, part).items():
                totals[k in bad] += rounds
    named = f"Seed {runs[0].seed}: {verdicts(client_rows(runs[0].records, runs[0].clients))}"
    if not _has_values(runs[0]):
        least = ", ".join(_kept_least(runs[0]))
        named = f"Kept least, seed {runs[0].seed}: {least}" if least else "No client was filtered out"
    if considered[True] and considered[False]:
        of_bad, others = (f"{100 * kept[kind] / considered[kind]:.0f} %" for kind in (True, False))
        sentence = f"The filter of {leader.arm} kept bad clients in {of_bad} of the cases and the others in {others}."
        detail = f"and {others} of the other clients. {named}"
        return sentence, _tile(f"Kept by the filter of {leader.arm}", f"{of_bad} of bad clients", detail)
    mean_kept, mean_considered = (totals.total() / sum(map(_filter_rounds, runs)) for totals in (kept, considered))
    sentence = f"The filter of {leader.arm} kept {mean_kept:.0f} of {mean_considered:.0f} clients on average."
    removed = f"{100 * (1 - kept.total() / considered.total()):.0f} %"
    return sentence, _tile(f"Filtered out by {leader.arm}", removed, named)


def _valued_run(
    section: Section, arms: dict[str, ArmStatistics], winner: ArmStatistics, primary: Primary
) -> tuple[str, Run] | None:
    """The first run with values of the winner, or of the best arm that has one."""
    valued = {arm.name: [run for run in arm.started if _has_values(run)] for arm in section.arms}
    leader = winner if valued[winner.arm] else best([arms[name] for name, runs in valued.items() if runs], primary)
    return (leader.arm, valued[leader.arm][0]) if leader else None


def _has_values(run: Run) -> bool:
    return any(value["mean"] is not None for record in run.records for value in record["values"])


def _filter_rounds(run: Run) -> int:
    return sum(bool(record["considered"]) for record in run.records)


def _kept_least(run: Run) -> list[str]:
    """The clients that were kept least often in relation to how often they were considered."""
    considered, kept = rounds_in(run, "considered"), rounds_in(run, "kept")
    removed = sorted(
        (k for k in considered if kept[k] < considered[k]), key=lambda k: (kept[k] / considered[k], -considered[k], k)
    )
    names = {k: run.clients.names[k] for k in removed[:MOST_NAMED] if run.clients and k < len(run.clients)}
    return [f"{names.get(k, k)} ({kept[k]} of {considered[k]})" for k in removed[:MOST_NAMED]]
