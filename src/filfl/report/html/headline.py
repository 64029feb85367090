"""The top of the page: which arm is best, by how much, at what cost, and which clients hurt. Methods are ranked only
where `standing.ranked` allows it."""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np

from filfl.core.evidence import PREFIX
from filfl.display import count
from filfl.report.formatting import NONE, megabytes, p_equals, percent, spread_text
from filfl.report.html.clients import rounds_in
from filfl.report.html.collect import Section
from filfl.report.html.events import alike
from filfl.report.html.standing import TestedBy, comparable, ranked, reasons, remarks, tested_by, unlike_tasks
from filfl.report.measures import SHARES, key_of, measure_named, primary_of
from filfl.report.statistics import LEVEL, ArmStatistics, Spread, compare_arms, default_target, over_seeds
from filfl.report.table import change_text, final_difference
from filfl.report.values import MOST_NAMED, hurting_sentence, verdicts
from filfl.runs.clients import client_rows
from filfl.runs.metrics import ACCURACY, LOSS, Primary
from filfl.runs.reader import Run
from filfl.runs.summary import LAST, at_round


def measure(section: Section) -> tuple[list[ArmStatistics], float | None]:
    """The statistics of the arms, and the target, if there is one. An arm is tested only if its runs and those of the
    arm that it is tested against are finished, with the same task and the same number of rounds."""
    primary = primary_of(section.started)
    records = {arm.name: [run.records if run else [] for run in arm.runs] for arm in section.arms}
    against = {arm.name: arm.against for arm in section.arms}
    target = section.target
    if target is None and ranked(section):
        target = default_target(records, primary)
    statistics = [
        arm if tested(section, arm.arm) else dataclasses.replace(arm, tests={})
        for arm in compare_arms(records, against, target, at=(), primary=primary)
    ]
    return statistics, target


def tested(section: Section, name: str) -> bool:
    """Whether an arm is compared with the one it is tested against."""
    arms = {arm.name: arm for arm in section.arms}
    pair = arms[name], arms[arms[name].against]
    missing = section.planned and any(run is None for arm in pair for run in arm.runs)
    return not missing and comparable(pair)


def headline(section: Section, statistics: Sequence[ArmStatistics], target: float | None) -> dict[str, Any]:
    """A sentence, further ones as a list, up to four tiles, and the run whose clients are named."""
    arms = {arm.arm: arm for arm in statistics}
    primary, where = primary_of(section.started), WHERE[tested_by(section)]
    if best(statistics, primary) is None:
        return {"sentence": "No round has been tested yet.", "more": [], "tiles": [], "run": None}
    is_ranked = ranked(section)
    winner = best(statistics, primary) if is_ranked else None
    sentences, tiles = reasons(section), []
    if winner is None:
        sentences += _in_common_round(section, primary)
        tiles = _progress_tiles(section)
    elif len(statistics) == 1:
        sentences.append(_alone(winner, primary, where))
        tiles = [_tile(*_final(winner, primary, where)) | {"arm": winner.arm}]
    elif len(tied := [arm for arm in statistics if _shown(arm, primary) == _shown(winner, primary)]) > 1:
        sentences.append(_tie(tied, primary, where))
        tiles = [
            _tile(f"{_extreme(primary)} {_title(primary)}{where}", _shown(winner, primary), f"a tie: {_names(tied)}")
        ]
    else:
        rival = _rival(winner, arms, primary)
        sentences.append(_result(winner, rival, primary, where))
        tiles = [_tile(f"{_extreme(primary)} {_title(primary)}{where}", winner.arm, _score(winner, primary))]
        tiles[0]["arm"] = winner.arm
        if rival:
            tiles.append(_difference_tile(winner, rival, primary))
        if target is not None:
            sentence, tile = _cost(winner, rival, arms.values(), target, primary)
            sentences.append(sentence)
            tiles += [tile] if tile else []
    if filtering := _filtering(section, arms, winner, primary):
        sentences.append(filtering[0])
        tiles.append(filtering[1])
    valued = _valued_run(section, arms, winner, primary)
    if valued:
        arm, run = valued
        where_run = f" ({arm}, seed {run.seed})" if len(section.started) > 1 else ""
        so_far = "" if run.finished else f"After {count(len(run.records), 'round')}: "
        sentences.append(so_far + hurting_sentence(client_rows(run.records, run.clients), where_run))
    more = [*_groups(section, winner, arms, primary, where), *remarks(section)]
    if is_ranked and section.target is None and target is not None and len(arms) > 1:
        more.append(
            f"Target {goal_text(target, primary)}: set automatically, a tenth worse than the best {_title(primary)}."
        )
    return {
        "sentence": " ".join(filter(None, sentences)),
        "more": [*more, *_tested_on(section)],
        "tiles": tiles,
        "run": {"arm": valued[0], "seed": valued[1].seed} if valued else None,
    }


WHERE: dict[TestedBy, str] = {
    "test set": "",
    "nodes": " on the nodes' own data",
    "server": " by the server's evaluate function",
    "nodes or server": " on the nodes' own data or by the server's evaluate function",
}
"""After the name of a result: where it was measured, if that is not a test set of the simulator."""


def _in_common_round(section: Section, primary: Primary) -> list[str]:
    """The results in the latest round that all started runs have, in the order of the arms: no ranking."""
    tested_until = [
        max((r["round"] for r in run.records if primary.of(r) is not None), default=0) for run in section.started
    ]
    t = min(tested_until, default=0)
    if t == 0 or unlike_tasks(section.arms):
        return []
    scores = []
    for arm in section.arms:
        if arm.started:
            spread = over_seeds([run.records for run in arm.started], partial(at_round, t=t, primary=primary))
            scores.append(f"{arm.name} {_number(spread, primary)}")
    shown = "; ".join(scores[:MOST_SCORES]) + (f"; and {len(scores) - MOST_SCORES} more" * (len(scores) > MOST_SCORES))
    where = WHERE[tested_by(section)]
    name = primary.name if where or primary.name not in (ACCURACY, LOSS) else f"test {primary.name}"
    alone, started = len(section.started) == 1, "started runs" if section.missing else "runs"
    which = f"In round {t}, the latest one tested" if alone else f"In round {t}, the latest one that all {started} have"
    values = _number(spread, primary) if alone else shown
    return [f"{which}, the {name}{where} is {values}."]


def _progress_tiles(section: Section) -> list[dict[str, str]]:
    """How far the runs are; none if all are finished."""
    if section.finished:
        return []
    done, total = sum(run.finished for run in section.started), len(section.started) + section.missing
    rounds, of = sum(len(run.records) for run in section.started), sum(run.rounds for run in section.started)
    if total == 1:
        return [_tile("Not finished", f"{rounds} of {count(of, 'round')}", "done so far")]
    waiting = f"; {count(section.missing, 'run')} not started" if section.missing else ""
    return [
        _tile("Not finished", f"{done} of {total} runs done", f"{rounds} of {of} rounds of the started runs{waiting}")
    ]


def _alone(arm: ArmStatistics, primary: Primary, where: str) -> str:
    seeds = count(arm.measures[key_of(primary)].count, "seed")
    return f"{arm.arm} reaches {_score(arm, primary)}{where} ({seeds})."


def _final(arm: ArmStatistics, primary: Primary, where: str) -> tuple[str, str, str]:
    """Label, value and detail of the tile of a single method."""
    spread = arm.measures[key_of(primary)]
    detail = f"mean of the last {LAST} tested rounds, or of all if there are fewer; {count(spread.count, 'seed')}"
    return f"{_title(primary).capitalize()}{where}", _number(spread, primary), detail


def _tie(tied: Sequence[ArmStatistics], primary: Primary, where: str) -> str:
    which = "lowest" if primary.lower else "highest"
    seeds = count(tied[0].measures[key_of(primary)].count, "seed")
    return f"{_names(tied)} tie: the {which} {_title(primary)}{where} is {_shown(tied[0], primary)} for each ({seeds})."


def _names(arms: Sequence[ArmStatistics]) -> str:
    """a, b and c"""
    *first, last = (arm.arm for arm in arms)
    return f"{', '.join(first)} and {last}" if first else last


def _title(primary: Primary) -> str:
    """Without "test": on Flower, nodes may have measured it on their own training data."""
    return "final loss" if primary.name == LOSS else measure_named(key_of(primary)).title


def _extreme(primary: Primary) -> str:
    return "Lowest" if primary.lower else "Highest"


def _shown(arm: ArmStatistics, primary: Primary) -> str:
    """The final value to the digits that the page shows: methods that are equal in it tie."""
    spread = arm.measures.get(key_of(primary))
    return _number(spread and dataclasses.replace(spread, count=1), primary)


def _number(spread: Spread | None, primary: Primary) -> str:
    """A value of the primary metric, with its standard deviation over seeds."""
    key = key_of(primary)
    return percent(spread) if key in SHARES else spread_text(spread, measure_named(key).form, between=" ± ")


def _tested_on(section: Section) -> list[str]:
    """On whose samples the results were measured, by the records on Flower, or the summaries of finished runs."""
    if (by := tested_by(section)) != "test set":
        return [TESTED[by]]
    found = {str(run.summary["test_set"]): None for run in section.started if run.summary and "test_set" in run.summary}
    return [f"Tested on {' or '.join(found)}."] if found else []


TESTED: dict[TestedBy, str] = {
    "nodes": "There is no separate test set: nodes evaluated the model on their own data, and the results are the "
    "strategy's mean over these nodes, including any whose labels are wrong.",
    "server": "Evaluated by the server's evaluate function.",
    "nodes or server": "Some results are the strategy's mean over the nodes, each on its own data, and some are from "
    "the server's evaluate function; they are not comparable.",
}


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


MOST_SCORES = 8
"""How many methods a sentence lists."""


def _p(winner: ArmStatistics, rival: ArmStatistics, primary: Primary) -> float | None:
    return (winner if winner.against == rival.arm else rival).p_values(key_of(primary))[0]


def _score(arm: ArmStatistics, primary: Primary) -> str:
    """The final value of the primary metric, with its name."""
    number = _number(arm.measures.get(key_of(primary)), primary)
    return f"{number} {_title(primary)}" if key_of(primary) in SHARES else f"a {_title(primary)} of {number}"


def _ahead(difference: float, rival: ArmStatistics, primary: Primary) -> str:
    """10.0 points above plain, or 0.05 below plain."""
    size = f"{abs(100 * difference):.1f} points" if key_of(primary) in SHARES else f"{abs(difference):.3g}"
    return f"{size} {'below' if primary.lower else 'above'} {rival.arm}"


def _result(winner: ArmStatistics, rival: ArmStatistics | None, primary: Primary, where: str) -> str:
    spread = winner.measures[key_of(primary)]
    first = f"{winner.arm} has the {_extreme(primary).lower()} {_title(primary)}{where}"
    score = f"{first}: {_number(spread, primary)} ({count(spread.count, 'seed')})"
    if rival is None:
        return f"{score}."
    if (difference := final_difference(winner, rival, primary)) is None:
        return f"{score}; {rival.arm} has none."
    if _shown(winner, primary) == _shown(rival, primary):
        return _tie([winner, rival], primary, where)
    ahead, p = _ahead(difference, rival, primary), _p(winner, rival, primary)
    if p is None:
        one = min(spread.count, rival.measures[key_of(primary)].count) == 1
        return f"{score}, {ahead}; " + ("one seed cannot exclude chance." if one else "the difference was not tested.")
    return (
        f"{score}, {ahead} ({p_equals(p)})." if p < LEVEL else f"{score}, {ahead}, which may be chance ({p_equals(p)})."
    )


def goal_text(target: float, primary: Primary) -> str:
    """The target: 70 %, or f1 0.7."""
    if key_of(primary) in SHARES:
        return f"{100 * target:.3g} %"
    return f"{primary.name} {target:.3g}"


def _cost(
    winner: ArmStatistics,
    rival: ArmStatistics | None,
    arms: Iterable[ArmStatistics],
    target: float,
    primary: Primary,
) -> tuple[str, dict[str, str] | None]:
    """A sentence and a tile about the rounds and the upload until the target; no tile if the winner misses it."""
    goal, mine, theirs = goal_text(target, primary), _reached(winner), _reached(rival) if rival else None
    label = f"Upload to reach {goal}"
    if not mine:
        nobody = not any(map(_reached, arms))
        return (
            f"No method reaches the target of {goal}." if nobody else f"It does not reach the target of {goal}.",
            None,
        )
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


def _groups(
    section: Section, winner: ArmStatistics | None, arms: dict[str, ArmStatistics], primary: Primary, where: str
) -> list[str]:
    """One sentence per group of arms that are tested against the same arm and can be ranked, without the winner's."""
    sentences = []
    for base in dict.fromkeys(arm.against for arm in arms.values() if arm.arm != arm.against):
        group = [arm for arm in arms.values() if base in (arm.arm, arm.against)]
        alike = section.finished and comparable(arm for arm in section.arms if base in (arm.name, arm.against))
        leader = best(group, primary) if alike and winner not in group else None
        if leader is not None and (rival := _rival(leader, arms, primary)) is not None:
            sentences.append(f"Among those tested against {base}: {_result(leader, rival, primary, where)}")
    return sentences


def _tile(label: str, value: str, detail: str) -> dict[str, str]:
    return {"label": label, "value": value, "detail": detail}


def _difference_tile(winner: ArmStatistics, rival: ArmStatistics, primary: Primary) -> dict[str, str]:
    difference, p = final_difference(winner, rival, primary), _p(winner, rival, primary)
    if p is None:
        test = "not tested (one seed, or missing results)"
    else:
        test = p_equals(p) + (", a significant difference" if p < LEVEL else ", may be chance")
    unit = " points" if key_of(primary) in SHARES else ""
    value = f"{change_text(difference, primary)}{unit}" if difference is not None else NONE
    return _tile(f"Against {rival.arm}", value, f"{rival.arm}: {_score(rival, primary)}; {test}")


def _filtering(
    section: Section, arms: dict[str, ArmStatistics], winner: ArmStatistics | None, primary: Primary
) -> tuple[str, dict[str, str]] | None:
    """A sentence and a tile about what the filter of the winner kept, or of another arm that filters."""
    filters = {arm.name: arm for arm in section.arms if any(map(_filter_rounds, arm.started))}
    leader = _shown_arm([arms[name] for name in filters], winner, primary)
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
    section: Section, arms: dict[str, ArmStatistics], winner: ArmStatistics | None, primary: Primary
) -> tuple[str, Run] | None:
    """The first run with values of the winner, or of another arm that has one."""
    valued = {arm.name: [run for run in arm.started if _has_values(run)] for arm in section.arms}
    leader = _shown_arm([arms[name] for name, runs in valued.items() if runs], winner, primary)
    return (leader.arm, valued[leader.arm][0]) if leader else None


def _shown_arm(
    candidates: Sequence[ArmStatistics], winner: ArmStatistics | None, primary: Primary
) -> ArmStatistics | None:
    """The arm that the page shows: the winner or the best of the candidates; without a ranking, the first of them."""
    if winner is None:
        return next(iter(candidates), None)
    return winner if winner in candidates else best(candidates, primary)


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
