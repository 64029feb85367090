"""`filfl data`: what a dataset looks like."""

from collections.abc import Sequence
from pathlib import Path

from filfl.commands.terminal import say
from filfl.errors import RunError
from filfl.experiment import Experiment, parse_changes
from filfl.report.data import draw_labels, facts


def data_command(name: str, path: str | None, pairs: Sequence[str], picture: Path) -> None:
    changes = {"data.name": name, **({"data.path": path} if path else {}), **parse_changes(pairs)}
    # Of the rest of the config nothing matters here, so it must not stand in the way of a small dataset.
    config = Experiment({"selection": {"k": 1}}).config(changes)
    config.require_objects()
    data = config.data.load(config.seed)
    width = max(map(len, facts(data)))
    say(name, style="bold")
    for what, value in facts(data).items():
        say(f"  {what:{width}s}  {value}")
    if data.classes:
        try:
            draw_labels(data, f"{name}: samples of every label on every client", picture)
        except OSError as error:
            raise RunError(f"{picture} cannot be written: {error.strerror}") from None
        say(f"picture  {picture}")
