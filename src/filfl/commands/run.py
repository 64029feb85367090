"""`filfl run`: one config."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from filfl.commands.scale import say_expected_time
from filfl.commands.terminal import console, default_directory, missing_words, print_json, resumable, say
from filfl.comparison.progress import RunDisplay
from filfl.config.experiment import Experiment
from filfl.config.plugins import name_of
from filfl.display import count
from filfl.runs.seal import CONFIG
from filfl.runs.summary import LAST
from filfl.simulation import Result, simulate
from filfl.trackers import make_trackers


def run_command(
    source: str,
    changes: Mapping[str, Any],
    scale: str | None,
    out: Path | None,
    resume: bool,
    track: Sequence[str],
    as_json: bool,
) -> None:
    config = Experiment.load(source).at_scale(scale).config(changes)
    trackers = make_trackers(track)
    directory = out or default_directory(config.name, resume, CONFIG)
    say(f"{config.name}: {count(config.rounds, 'round')}, seed {config.seed}", style="bold")
    say(
        f"data {name_of('data', config.data)}, filter {config.filter.name}, "
        f"selection {name_of('selection', config.selection)} (k = {config.selection.k})"
    )
    say_expected_time(scale, [config])
    with resumable(*missing_words(directory, out, resume)), RunDisplay(console, config.rounds) as display:
        result = simulate(config, callbacks=[display, *trackers], out=directory, resume=resume, progress=False, say=say)
    show(result, directory)
    if as_json:
        print_json(
            {"directory": str(directory), "already_finished": result.already_finished, "summary": result.summary}
        )


def show(result: Result, directory: Path) -> None:
    if result.already_finished:
        say("This run was already finished; no round was run.")
    summary = result.summary
    accuracy = "-" if summary["final_accuracy"] is None else f"{summary['final_accuracy']:.3f}"
    say(f"final accuracy      {accuracy} (mean of the last {LAST} tested rounds)")
    for name, value in summary["final_metrics"].items():
        say(f"{f'final {name}':19s} {'-' if value is None else f'{value:.4g}'}")
    say(f"tested on           {summary['test_set']}")
    if "filtering_set" in summary:
        say(f"filtered with       {summary['filtering_set']}")
    say(f"mean |S^f|          {summary['mean_filtered']:.1f}")
    say(f"uplink              {summary['uplink_bytes'] / 1e6:.1f} MB")
    say(f"reward evaluations  {summary['evaluations']}")
    say(f"refused updates     {summary['refused']}")
    say(f"results             {directory}")
    say(f"For an HTML report: {shlex.join(['filfl', 'report', str(directory)])}")
