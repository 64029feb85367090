"""`filfl run`: one run."""

from collections.abc import Sequence
from pathlib import Path

from filfl.commands.terminal import console, default_directory, stopped
from filfl.config import name_of
from filfl.experiment import Experiment, parse_changes
from filfl.progress import RoundsShown
from filfl.simulation import simulate


def run_command(source: str, pairs: Sequence[str], out: Path | None, resume: bool) -> None:
    config = Experiment.load(source).config(parse_changes(pairs))
    directory = out or default_directory(config.name, resume)
    console.print(
        f"[bold]{config.name}[/]: {config.rounds} rounds, data {name_of('data', config.data)}, "
        f"filter {config.filter.name}, selection {name_of('selection', config.selection)} "
        f"with k = {config.selection.k}, seed {config.seed}",
        highlight=False,
    )
    try:
        with RoundsShown(console, config.rounds) as shown:
            result = simulate(config, callbacks=[shown], out=directory, resume=resume, say=console.print)
    except KeyboardInterrupt:
        stopped(["filfl", "run", source, *(f"--set {pair}" for pair in pairs)], directory)
    if result.already_finished:
        console.print("This run is finished already; nothing was done.")
    summary = result.summary
    console.print(
        f"accuracy {_number(summary['final_accuracy'], '.3f')}, mean |S^f| {_number(summary['mean_filtered'], '.1f')}, "
        f"uplink {summary['uplink_bytes'] / 1e6:.1f} MB, {summary['evaluations']} evaluations, "
        f"{summary['refused']} refused",
        highlight=False,
    )
    console.print(f"Everything about this run is in {directory}", highlight=False, soft_wrap=True)


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
