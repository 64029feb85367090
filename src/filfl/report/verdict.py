"""The headline: which arm won, by how much, at what cost, and whom its filter threw out. All of it computed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from filfl.report.cells import Measured, best, welch_p
from filfl.report.collect import ArmRuns, Section
from filfl.report.presence import kept_of
from filfl.report.statistics import ArmStatistics, Spread
from filfl.report.stored import StoredRun
from filfl.report.words import counted, megabytes, p_sentence, percent, plain, points

CHANCE = 0.05
"""A p below this is called a clear difference."""
NAMED = 4
"""How many of the clients that were kept least are named."""


@dataclass(frozen=True)
class Kept:
    """How often the filterings of an arm kept those they judged."""

    judged: int
    kept: int
    noisy_judged: int
    noisy_kept: int
    filterings: int
    seed: int
    least: tuple[str, ...]
    """The names of the clients that were kept least, in the run of this seed."""

    @property
    def share(self) -> float:
        return self.kept / self.judged


def verdict(section: Section, measured: Measured) -> dict[str, Any]:
    """A sentence, more sentences for arms tested against others, and four tiles."""
    winner = best(list(measured.arms.values()))
    if winner is None:
        return {"sentence": "No round has been tested yet.", "more": [], "tiles": []}
    rival = _rival(winner, measured)
    filtering = _filtering_arm(section, measured, winner)
    kept = kept_by(filtering) if filtering else None
    sentences = [_who(winner, rival, measured), _cost_sentence(winner, rival, measured)]
    if filtering and kept:
        sentences.append(_kept_sentence(filtering.name, kept))
    tiles = [_winner_tile(winner)]
    if rival:
        tiles += [_difference_tile(winner, rival, measured), _cost_tile(winner, rival, measured)]
    if filtering and kept:
        tiles.append(_kept_tile(filtering.name, kept))
    return {
        "sentence": _so_far(section) + " ".join(filter(None, sentences)),
        "more": _other_groups(winner, measured),
        "tiles": tiles,
    }


def _so_far(section: Section) -> str:
    if section.finished:
        return ""
    done, total = sum(run.finished for run in section.begun), len(section.begun) + section.missing
    return f"So far, with {done} of {counted(total, 'run')} finished: "


def _rival(winner: ArmStatistics, measured: Measured) -> ArmStatistics | None:
    """The arm that the winner is tested against; where it is its own, the best of those tested against it."""
    if winner.arm != winner.against:
        return measured.arms[winner.against]
    return best([arm for arm in measured.arms.values() if arm.against == winner.arm and arm.arm != winner.arm])


def _p(winner: ArmStatistics, rival: ArmStatistics) -> float | None:
    return welch_p(winner if winner.against == rival.arm else rival)


def _score(arm: ArmStatistics) -> str:
    return (
        percent(arm.measures.get("accuracy"))
        if arm.measures.get("accuracy")
        else f"a test loss of {plain(arm.measures.get('test-loss'), 3)}"
    )


def _who(winner: ArmStatistics, rival: ArmStatistics | None, measured: Measured) -> str:
    spread = winner.measures.get("accuracy") or winner.measures.get("test-loss")
    seeds = counted(spread.count, "seed") if spread else ""
    what = " final accuracy" if winner.measures.get("accuracy") else ""
    if rival is None:
        return f"{winner.arm} comes to {_score(winner)}{what} ({seeds})."
    if (difference := measured.difference(winner.arm, rival.arm)) is None:
        return f"{winner.arm} has the lowest loss: {_score(winner)} ({seeds}), {rival.arm} {_score(rival)}."
    p = _p(winner, rival)
    ahead = f"{abs(100 * difference):.1f} points above {rival.arm}"
    if p is None:
        return f"{winner.arm} is ahead with {_score(winner)}{what} ({seeds}), {ahead}; no test says whether by chance."
    if p < CHANCE:
        return f"{winner.arm} wins with {_score(winner)}{what} ({seeds}), {ahead} ({p_sentence(p)})."
    return (
        f"{winner.arm} is ahead with {_score(winner)}{what} ({seeds}), {ahead}, which may be chance ({p_sentence(p)})."
    )


def _cost_sentence(winner: ArmStatistics, rival: ArmStatistics | None, measured: Measured) -> str:
    if not winner.rounds_to_target or not winner.uplink_to_target:
        return ""
    target = f"{100 * measured.target:.3g} %"
    sent = megabytes(winner.uplink_to_target.mean)
    sentence = f"It reaches {target} after {_rounds(winner.rounds_to_target)} and {sent} of upload"
    if rival is None:
        return f"{sentence}."
    if not rival.rounds_to_target or not rival.uplink_to_target:
        return f"{sentence}; {rival.arm} never does."
    sent = megabytes(rival.uplink_to_target.mean)
    return f"{sentence}; {rival.arm} after {_rounds(rival.rounds_to_target)} and {sent}."


def _rounds(spread: Spread) -> str:
    missed = f" (in {spread.count} of {spread.of} seeds)" if spread.count < spread.of else ""
    return counted(round(spread.mean), "round") + missed


def _other_groups(winner: ArmStatistics, measured: Measured) -> list[str]:
    """A sentence for every other arm that some are tested against."""
    bases = dict.fromkeys(arm.against for arm in measured.arms.values() if arm.arm != arm.against)
    sentences = []
    for base in bases:
        group = [arm for arm in measured.arms.values() if base in (arm.arm, arm.against)]
        leader = best(group)
        if winner in group or leader is None or (rival := _rival(leader, measured)) is None:
            continue
        sentences.append(f"Of those tested against {base}: {_who(leader, rival, measured)}")
    return sentences


def _filtering_arm(section: Section, measured: Measured, winner: ArmStatistics) -> ArmRuns | None:
    """The winner where it filters, else the best arm that does."""
    filters = {arm.name: arm for arm in section.arms if any(r["trace"] or r["considered"] for r in _records(arm))}
    leader = winner if winner.arm in filters else best([measured.arms[name] for name in filters])
    return filters[leader.arm] if leader else None


def _records(arm: ArmRuns) -> list[dict[str, Any]]:
    return [record for run in arm.begun for record in run.records]


def kept_by(arm: ArmRuns) -> Kept | None:
    """Counts over all runs of an arm; None where its filter judged nobody."""
    judged = kept = noisy_judged = noisy_kept = filterings = 0
    for run in arm.begun:
        noisy = set(np.flatnonzero(run.clients.noisy).tolist()) if run.clients else set()
        for record in run.records:
            considered, keeps = record["considered"], set(kept_of(record))
            filterings += bool(considered)
            judged += len(considered)
            kept += len(keeps)
            noisy_judged += len(noisy.intersection(considered))
            noisy_kept += len(noisy & keeps)
    if not judged:
        return None
    return Kept(judged, kept, noisy_judged, noisy_kept, filterings, arm.begun[0].seed, _kept_least(arm.begun[0]))


def _kept_least(run: StoredRun) -> tuple[str, ...]:
    """The clients with the lowest share of filterings that kept them, those judged more often first."""
    judged: dict[int, int] = {}
    kept: dict[int, int] = {}
    for record in run.records:
        for k in record["considered"]:
            judged[k] = judged.get(k, 0) + 1
        for k in kept_of(record):
            kept[k] = kept.get(k, 0) + 1
    thrown = [k for k in judged if kept.get(k, 0) < judged[k]]
    thrown.sort(key=lambda k: (kept.get(k, 0) / judged[k], -judged[k], k))
    return tuple(f"{_name(run, k)} ({kept.get(k, 0)} of {judged[k]})" for k in thrown[:NAMED])


def _name(run: StoredRun, k: int) -> str:
    return str(run.clients.names[k]) if run.clients and k < len(run.clients) else str(k)


def _shares(kept: Kept) -> tuple[str, str] | None:
    """How much of the noisy and of the other clients was kept, where there are both."""
    others = kept.judged - kept.noisy_judged
    if not kept.noisy_judged or not others:
        return None
    return f"{kept.noisy_kept / kept.noisy_judged:.0%}", f"{(kept.kept - kept.noisy_kept) / others:.0%}"


def _kept_sentence(arm: str, kept: Kept) -> str:
    if shares := _shares(kept):
        noisy, others = map(_percent, shares)
        return f"The filter of {arm} kept noisy clients {noisy} of the time, the others {others}."
    size, ground = kept.kept / kept.filterings, kept.judged / kept.filterings
    return f"The filter of {arm} kept {size:.0f} of {ground:.0f} clients."


def _percent(share: str) -> str:
    return share.replace("%", " %")


def _winner_tile(winner: ArmStatistics) -> dict[str, str]:
    measure = "final test accuracy" if winner.measures.get("accuracy") else "final test loss, the lowest"
    score = (
        percent(winner.measures.get("accuracy"))
        if winner.measures.get("accuracy")
        else plain(winner.measures.get("test-loss"), 3)
    )
    return {"label": "Best method", "value": winner.arm, "detail": f"{score} {measure}", "arm": winner.arm}


def _difference_tile(winner: ArmStatistics, rival: ArmStatistics, measured: Measured) -> dict[str, str]:
    difference = measured.difference(winner.arm, rival.arm)
    p = _p(winner, rival)
    said = "no test: runs of one seed, or unfinished" if p is None else p_sentence(p)
    clear = "" if p is None else ", a clear difference" if p < CHANCE else ", may be chance"
    value = f"{points(difference)} points" if difference is not None else "lower loss"
    return {"label": f"Against {rival.arm}", "value": value, "detail": f"{_score(rival)} there; {said}{clear}"}


def _cost_tile(winner: ArmStatistics, rival: ArmStatistics, measured: Measured) -> dict[str, str]:
    mine, theirs = winner.uplink_to_target, rival.uplink_to_target
    label = f"Upload to reach {100 * measured.target:.3g} %"
    if not mine or not winner.rounds_to_target:
        return {"label": label, "value": "never reached", "detail": "Lower the target, or run more rounds"}
    rounds = _rounds(winner.rounds_to_target)
    if not theirs or not rival.rounds_to_target:
        return {"label": label, "value": megabytes(mine.mean), "detail": f"{rounds}; {rival.arm} never gets there"}
    times = f"{mine.mean / theirs.mean:.2g} times" if theirs.mean else "against"
    instead = f"{rounds} instead of {_rounds(rival.rounds_to_target)}"
    detail = f"{instead}; {times} {rival.arm}'s {megabytes(theirs.mean)}"
    return {"label": label, "value": megabytes(mine.mean), "detail": detail}


def _kept_tile(arm: str, kept: Kept) -> dict[str, str]:
    named = f"Kept least, seed {kept.seed}: {', '.join(kept.least)}" if kept.least else "Nobody was thrown out"
    if shares := _shares(kept):
        noisy, others = map(_percent, shares)
        detail = f"and {others} of the other clients. {named}"
        return {"label": f"Kept by the filter of {arm}", "value": f"{noisy} of noisy clients", "detail": detail}
    return {"label": f"Thrown out by {arm}", "value": _percent(f"{1 - kept.share:.0%}"), "detail": named}


def problems_of(section: Section) -> Sequence[str]:
    """What the reader must know: what is missing, unfinished or damaged, with the place where it is."""
    notes = list(section.problems)
    found: dict[str, list[StoredRun]] = {}
    for run in section.begun:
        for problem in run.problems:
            found.setdefault(problem, []).append(run)
    for problem, runs in found.items():
        more = f" and {len(runs) - 1} more" if len(runs) > 1 else ""
        notes.append(f"{runs[0].directory}{more}: {problem}")
    waiting = [run for run in section.begun if not run.finished]
    if waiting:
        where = ", ".join(
            f"{run.name} seed {run.seed} ({len(run.records)} of {run.rounds} rounds)" for run in waiting[:6]
        )
        more = f" and {len(waiting) - 6} more" if len(waiting) > 6 else ""
        notes.append(f"Not finished: {where}{more}.")
    if section.missing:
        notes.append(f"{counted(section.missing, 'run')} not begun.")
    return notes
