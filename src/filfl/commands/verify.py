"""`filfl verify`: whether a run is as it was written, and can be recomputed."""

import sys
from collections.abc import Sequence
from pathlib import Path

import typer

from filfl.commands.terminal import print_json, say
from filfl.display import count
from filfl.simulation import Verification, verify


def verify_command(directory: Path, rounds: int | None, seed: int, as_json: bool) -> None:
    found = verify(directory, rounds=rounds, seed=seed, say=lambda text: print(text, file=sys.stderr))
    if as_json:
        print_json(table(found))
    else:
        show(found)
    if not found.ok:
        raise typer.Exit(1)


def table(found: Verification) -> dict[str, object]:
    """The JSON object."""
    return {
        "run": str(found.directory),
        "ok": found.ok,
        "finished": found.finished,
        "rounds": found.rounds,
        "problems": list(found.problems),
        "files": list(found.files),
        "checkpoints": list(found.checkpoints),
        "recomputed": list(found.recomputed),
        "not_recomputed": list(found.not_recomputed),
        "why_not": found.why_not,
    }


def show(found: Verification) -> None:
    if found.files:
        say(f"hashes        {', '.join(found.files)}: unchanged")
    elif not found.finished:
        say(f"hashes        none: the run is not finished ({count(found.rounds, 'round')})")
    say(f"checkpoints   {f'intact after round {spans(found.checkpoints)}' if found.checkpoints else 'none'}")
    if found.why_not:
        say(f"recomputed    no round: {found.why_not}")
    else:
        say(f"recomputed    {_rounds(found.recomputed)}")
        say(f"              not recomputed: {_rounds(found.not_recomputed)}")
    for problem in found.problems:
        say(f"failed        {problem}", style="red")
    say(_result(found), style="bold")


def _result(found: Verification) -> str:
    if not found.ok:
        return "The run is not as it was written."
    return "The files are as the run wrote them." if found.why_not else "The run is as it was written."


def spans(rounds: Sequence[int]) -> str:
    """Consecutive numbers as spans: 1-3, 7."""
    groups: list[list[int]] = []
    for t in rounds:
        if groups and groups[-1][-1] == t - 1:
            groups[-1].append(t)
        else:
            groups.append([t])
    return ", ".join(str(group[0]) if len(group) == 1 else f"{group[0]}-{group[-1]}" for group in groups)


def _rounds(rounds: Sequence[int]) -> str:
    if not rounds:
        return "no round"
    return f"round{'s' if len(rounds) > 1 else ''} {spans(rounds)}"
