"""`filfl data`: describe a dataset."""

from collections.abc import Sequence
from pathlib import Path

from filfl.commands.terminal import say
from filfl.config.experiment import Experiment, parse_changes
from filfl.errors import RunError
from filfl.report.dataset import draw_labels, facts


def data_command(name: str, path: str | None, pairs: Sequence[str], picture: Path) -> None:
    changes = {"data.name": name, **({"data.path": path} if path else {}), **parse_changes(pairs)}
    # The smallest k: the default one may be larger than the number of clients of a small dataset.
    config = Experiment({"selection": {"k": 1}}).config(changes)
    config.require_objects()
    data = config.data.load(config.seed)
    width = max(map(len, facts(data)))
    say(name, style="bold")
    for fact, value in facts(data).items():
        say(f"  {fact:{width}s}  {value}")
    if data.classes:
        try:
            draw_labels(data, f"{name}: samples of every label on every client", picture)
        except OSError as error:
            raise RunError(f"{picture} cannot be written: {error.strerror}") from None
        say(f"picture  {picture}")
