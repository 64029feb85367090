"""`filfl run`: one run."""

from collections.abc import Sequence
from pathlib import Path

from filfl.commands.terminal import console, default_directory, interrupted, missing_words, say
from filfl.comparison.progress import RunDisplay
from filfl.config.experiment import Experiment, parse_changes
from filfl.config.plugins import name_of
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
    say(f"{config.name}: {config.rounds} rounds, seed {config.seed}", style="bold")
    say(
        f"data {name_of('data', config.data)}, filter {config.filter.name}, "
        f"selection {name_of('selection', config.selection)} (k = {config.selection.k})"
    )
    try:
        with RunDisplay(console, config.rounds) as display:
            result = simulate(config, callbacks=[display, *trackers], out=directory, resume=resume, say=say)
    except KeyboardInterrupt:
        interrupted(*missing_words(directory, out, resume))
    if result.already_finished:
        say("This run was already finished; no round was run.")
    summary = result.summary
    accuracy, filtered = _number(summary["final_accuracy"], ".3f"), _number(summary["mean_filtered"], ".1f")
    say(f"final accuracy      {accuracy} (mean of the last {LAST} tested rounds)")
    say(f"mean |S^f|          {filtered}")
    say(f"uplink              {summary['uplink_bytes'] / 1e6:.1f} MB")
    say(f"reward evaluations  {summary['evaluations']}")
    say(f"refused updates     {summary['refused']}")
    say(f"results             {directory}")


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
