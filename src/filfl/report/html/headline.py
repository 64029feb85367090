"""The top of the page: which arm is best, by how much, at what cost, and which clients its filter removed."""

import dataclasses
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from filfl.report.formatting import count, megabytes, p_equals, percent, points, spread_text
from filfl.report.html.clients import kept_of
from filfl.report.html.collect import ArmRuns, Section
from filfl.report.statistics import LEVEL, ArmStatistics, Spread, compare_arms, default_target
from filfl.report.table import accuracy_difference
from filfl.runs.reader import Run

NAMED = 4
"""How many of the clients that were kept least are named."""


def measure(section: Section) -> tuple[list[ArmStatistics], float]:
    """The statistics of the arms, and the target accuracy. Arms with unfinished runs are not tested."""
    records = {arm.name: [run.records if run else [] for run in arm.runs] for arm in section.arms}
    against = {arm.name: arm.against for arm in section.arms}
    target = default_target(records) if section.target is None else section.target
    finished = {arm.name: all(run is not None and run.finished for run in arm.runs) for arm in section.arms}
    statistics = [
        arm if finished[arm.arm] and finished[arm.against] else dataclasses.replace(arm, tests={})
        for arm in compare_arms(records, against, target, at=())
    ]
    return statistics, target


def headline(section: Section, statistics: Sequence[ArmStatistics], target: float) -> dict[str, Any]:
    """A sentence, one more for each other group of arms, and up to four tiles."""
    arms = {arm.arm: arm for arm in statistics}
    winner = best(statistics)
    if winner is None:
        return {"sentence": "No round has been tested yet.", "more": [], "tiles": []}
    rival = _rival(winner, arms)
    filtering = _filtering_arm(section, arms, winner)
    kept = kept_by(filtering) if filtering else None
    sentences = [_result(winner, rival), _cost(winner, rival, target)]
    tiles = [_winner_tile(winner)]
    if rival:
        tiles += [_difference_tile(winner, rival), _cost_tile(winner, rival, target)]
    if filtering and kept:
        sentences.append(_kept_sentence(filtering.name, kept))
        tiles.append(_kept_tile(filtering.name, kept))
    return {
        "sentence": _progress(section) + " ".join(filter(None, sentences)),
        "more": _other_groups(winner, arms),
        "tiles": tiles,
    }


def problems_of(section: Section) -> list[str]:
    """What is missing, unfinished or damaged, and where."""
    notes = list(section.problems)
    found: dict[str, list[Run]] = {}
    for run in section.started:
        for problem in run.problems:
            found.setdefault(problem, []).append(run)
    for problem, runs in found.items():
        more = f" and {len(runs) - 1} more" if len(runs) > 1 else ""
        notes.append(f"{runs[0].directory}{more}: {problem}")
    waiting = [run for run in section.started if not run.finished]
    if waiting:
        where = ", ".join(
            f"{run.name} seed {run.seed} ({len(run.records)} of {run.rounds} rounds)" for run in waiting[:6]
        )
        more = f" and {len(waiting) - 6} more" if len(waiting) > 6 else ""
        notes.append(f"Not finished: {where}{more}.")
    if section.missing:
        notes.append(f"{count(section.missing, 'run')} not started.")
    return notes


def best(arms: Sequence[ArmStatistics]) -> ArmStatistics | None:
    """The arm with the highest final accuracy, or with the lowest test loss if no arm has an accuracy."""
    accurate = [arm for arm in arms if "accuracy" in arm.measures]
    if accurate:
        return max(accurate, key=lambda arm: arm.measures["accuracy"].mean)
    losses = [arm for arm in arms if "test-loss" in arm.measures]
    return min(losses, key=lambda arm: arm.measures["test-loss"].mean) if losses else None


def _progress(section: Section) -> str:
    if section.finished:
        return ""
    done, total = sum(run.finished for run in section.started), len(section.started) + section.missing
    return f"So far, with {done} of {count(total, 'run')} finished: "


def _rival(winner: ArmStatistics, arms: dict[str, ArmStatistics]) -> ArmStatistics | None:
    """The arm that the winner is tested against. If that is itself, the best of the arms tested against the winner."""
    if winner.arm != winner.against:
        return arms[winner.against]
    return best([arm for arm in arms.values() if arm.against == winner.arm and arm is not winner])


def _p(winner: ArmStatistics, rival: ArmStatistics) -> float | None:
    tests = (winner if winner.against == rival.arm else rival).tests
    return tests["accuracy"].welch_p if "accuracy" in tests else None


def _score(arm: ArmStatistics) -> str:
    """The final accuracy, or the test loss if there is none."""
    if "accuracy" in arm.measures:
        return f"{percent(arm.measures['accuracy'])} final accuracy"
    return f"a test loss of {spread_text(arm.measures.get('test-loss'), between=' ± ')}"


def _result(winner: ArmStatistics, rival: ArmStatistics | None) -> str:
    spread = winner.measures.get("accuracy") or winner.measures["test-loss"]
    score = f"{_score(winner)} ({count(spread.count, 'seed')})"
    if rival is None:
        return f"{winner.arm} reaches {score}."
    if (difference := accuracy_difference(winner, rival)) is None:
        return f"{winner.arm} is best with {score}; {rival.arm} has {_score(rival)}."
    ahead = f"{abs(100 * difference):.1f} points above {rival.arm}"
    p = _p(winner, rival)
    if p is None:
        return f"{winner.arm} is ahead with {score}, {ahead}; the difference was not tested."
    if p < LEVEL:
        return f"{winner.arm} wins with {score}, {ahead} ({p_equals(p)})."
    return f"{winner.arm} is ahead with {score}, {ahead}, which may be chance ({p_equals(p)})."


def _cost(winner: ArmStatistics, rival: ArmStatistics | None, target: float) -> str:
    if not winner.rounds_to_target or not winner.uplink_to_target:
        return ""
    sent = megabytes(winner.uplink_to_target.mean)
    sentence = f"It reaches {100 * target:.3g} % after {_rounds(winner.rounds_to_target)} and {sent} of upload"
    if rival is None:
        return f"{sentence}."
    if not rival.rounds_to_target or not rival.uplink_to_target:
        return f"{sentence}; {rival.arm} never does."
    sent = megabytes(rival.uplink_to_target.mean)
    return f"{sentence}; {rival.arm} after {_rounds(rival.rounds_to_target)} and {sent}."


def _rounds(spread: Spread) -> str:
    missed = f" (in {spread.count} of {spread.of} seeds)" if spread.count < spread.of else ""
    return count(round(spread.mean), "round") + missed


def _other_groups(winner: ArmStatistics, arms: dict[str, ArmStatistics]) -> list[str]:
    """One sentence for each other arm that arms are tested against."""
    sentences = []
    for base in dict.fromkeys(arm.against for arm in arms.values() if arm.arm != arm.against):
        group = [arm for arm in arms.values() if base in (arm.arm, arm.against)]
        leader = best(group)
        if winner not in group and leader is not None and (rival := _rival(leader, arms)) is not None:
            sentences.append(f"Among those tested against {base}: {_result(leader, rival)}")
    return sentences


def _winner_tile(winner: ArmStatistics) -> dict[str, str]:
    return {"label": "Best method", "value": winner.arm, "detail": _score(winner), "arm": winner.arm}


def _difference_tile(winner: ArmStatistics, rival: ArmStatistics) -> dict[str, str]:
    difference, p = accuracy_difference(winner, rival), _p(winner, rival)
    if p is None:
        test = "not tested (one seed, or unfinished runs)"
    else:
        test = p_equals(p) + (", a significant difference" if p < LEVEL else ", may be chance")
    value = f"{points(difference)} points" if difference is not None else "lower loss"
    return {"label": f"Against {rival.arm}", "value": value, "detail": f"{rival.arm}: {_score(rival)}; {test}"}


def _cost_tile(winner: ArmStatistics, rival: ArmStatistics, target: float) -> dict[str, str]:
    mine, theirs = winner.uplink_to_target, rival.uplink_to_target
    label = f"Upload to reach {100 * target:.3g} %"
    if not mine or not winner.rounds_to_target:
        return {"label": label, "value": "never reached", "detail": "Lower the target, or run more rounds"}
    rounds = _rounds(winner.rounds_to_target)
    if not theirs or not rival.rounds_to_target:
        detail = f"{rounds}; {rival.arm} never reaches it"
    else:
        times = f"{mine.mean / theirs.mean:.2g} times" if theirs.mean else "against"
        sent = f"{times} the {megabytes(theirs.mean)} of {rival.arm}"
        detail = f"{rounds} instead of {_rounds(rival.rounds_to_target)}; {sent}"
    return {"label": label, "value": megabytes(mine.mean), "detail": detail}


@dataclass(frozen=True)
class Kept:
    """How many of the clients that the filter considered it kept, summed over the filter rounds of an arm."""

    judged: int
    kept: int
    bad_judged: int
    bad_kept: int
    filter_rounds: int
    seed: int
    least: tuple[str, ...]
    """The clients that were kept least in the run of this seed."""

    @property
    def shares(self) -> tuple[str, str] | None:
        """The shares of bad and of other clients that were kept; None if there are not both kinds."""
        others = self.judged - self.bad_judged
        if not self.bad_judged or not others:
            return None
        return _share(self.bad_kept / self.bad_judged), _share((self.kept - self.bad_kept) / others)


def kept_by(arm: ArmRuns) -> Kept | None:
    """The counts over all runs of an arm; None if its filter considered no client."""
    judged = kept = bad_judged = bad_kept = filter_rounds = 0
    for run in arm.started:
        bad = set(np.flatnonzero(run.clients.noisy).tolist()) if run.clients else set()
        for record in run.records:
            considered, keeps = record["considered"], set(kept_of(record))
            filter_rounds += bool(considered)
            judged += len(considered)
            kept += len(keeps)
            bad_judged += len(bad.intersection(considered))
            bad_kept += len(bad & keeps)
    if not judged:
        return None
    first = arm.started[0]
    return Kept(judged, kept, bad_judged, bad_kept, filter_rounds, first.seed, _kept_least(first))


def _kept_least(run: Run) -> tuple[str, ...]:
    """The clients that were kept least often in relation to how often they were considered."""
    judged = Counter(k for record in run.records for k in record["considered"])
    kept = Counter(k for record in run.records for k in kept_of(record))
    removed = [k for k in judged if kept[k] < judged[k]]
    removed.sort(key=lambda k: (kept[k] / judged[k], -judged[k], k))
    return tuple(f"{_name(run, k)} ({kept[k]} of {judged[k]})" for k in removed[:NAMED])


def _name(run: Run, k: int) -> str:
    return str(run.clients.names[k]) if run.clients and k < len(run.clients) else str(k)


def _filtering_arm(section: Section, arms: dict[str, ArmStatistics], winner: ArmStatistics) -> ArmRuns | None:
    """The winner if it filters, or else the best arm that does."""
    filters = {
        arm.name: arm for arm in section.arms if any(r["considered"] for run in arm.started for r in run.records)
    }
    leader = winner if winner.arm in filters else best([arms[name] for name in filters])
    return filters[leader.arm] if leader else None


def _kept_sentence(arm: str, kept: Kept) -> str:
    if kept.shares:
        bad, others = kept.shares
        return f"The filter of {arm} kept bad clients in {bad} of the cases and the others in {others}."
    size, considered = kept.kept / kept.filter_rounds, kept.judged / kept.filter_rounds
    return f"The filter of {arm} kept {size:.0f} of {considered:.0f} clients on average."


def _kept_tile(arm: str, kept: Kept) -> dict[str, str]:
    named = f"Kept least, seed {kept.seed}: {', '.join(kept.least)}" if kept.least else "No client was filtered out"
    if kept.shares:
        bad, others = kept.shares
        detail = f"and {others} of the other clients. {named}"
        return {"label": f"Kept by the filter of {arm}", "value": f"{bad} of bad clients", "detail": detail}
    return {"label": f"Filtered out by {arm}", "value": _share(1 - kept.kept / kept.judged), "detail": named}


def _share(value: float) -> str:
    return f"{100 * value:.0f} %"
