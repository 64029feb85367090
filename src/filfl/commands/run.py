"""`filfl run`: one run."""

from collections.abc import Sequence
from pathlib import Path

from filfl.commands.terminal import console, default_directory, say, stopped
from filfl.experiment import Experiment, parse_changes
from filfl.plugins import name_of
from filfl.progress import RoundsShown
from filfl.runs.store import CONFIG
from filfl.runs.summary import LAST
from filfl.simulation import simulate
from filfl.trackers import make_trackers


def run_command(
    source: str, pairs: Sequence[str], scale: str | None, out: Path | None, resume: bool, track: Sequence[str]
) -> None:
    config = Experiment.load(source).at_scale(scale).config(parse_changes(pairs))
    trackers = make_trackers(track)
    directory = out or default_directory(config.name, resume, CONFIG)
    say(
        f"{config.name}: {config.rounds} rounds, data {name_of('data', config.data)}, filter {config.filter.name}, "
        f"selection {name_of('selection', config.selection)} with k = {config.selection.k}, seed {config.seed}",
        style="bold",
    )
    try:
        with RoundsShown(console, config.rounds) as shown:
            result = simulate(config, callbacks=[shown, *trackers], out=directory, resume=resume, say=say)
    except KeyboardInterrupt:
        given = [word for pair in pairs for word in ("--set", pair)] + (["--scale", scale] if scale else [])
        given += [word for name in track for word in ("--track", name)]
        stopped(["filfl", "run", source, *given, "--out", str(directory), "--resume"])
    if result.already_finished:
        say("This run is finished already; no round was made.")
    summary = result.summary
    accuracy, filtered = _number(summary["final_accuracy"], ".3f"), _number(summary["mean_filtered"], ".1f")
    say(
        f"final accuracy {accuracy} (mean of the last {LAST} tested rounds), mean |S^f| {filtered}, "
        f"uplink {summary['uplink_bytes'] / 1e6:.1f} MB, {summary['evaluations']} evaluations, "
        f"{summary['refused']} refused"
    )
    say(f"Everything about this run is in {directory}")


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
