"""Errors that a person can act on. The command line shows their text and no traceback."""

from collections.abc import Iterable


class FilflError(Exception):
    """The root of every error that filfl raises on purpose."""


class ConfigError(FilflError):
    """A config that cannot run. `problems` has one sentence a mistake, each naming its key."""

    def __init__(self, problems: str | Iterable[str]) -> None:
        self.problems = [problems] if isinstance(problems, str) else list(problems)
        super().__init__("\n".join(self.problems))


LONGEST = 200
"""Characters of somebody else's words that a record keeps."""


def one_line(text: str) -> str:
    """A line of a record, out of whatever a client or a node said."""
    line = " ".join(text.split())
    return line if len(line) <= LONGEST else line[: LONGEST - 3] + "..."


def only_from_python(key: str, name: str, argument: str) -> ConfigError:
    """For a name that stands for something of the user's own, where nothing was given."""
    return ConfigError(
        f'{key} = "{name}" stands for your own, given from Python: call filfl.simulate(config, {argument}=...), '
        "or take another name (see `filfl list`)"
    )


def only_on_flower(key: str, name: str) -> ConfigError:
    """For a name that stands for what a federation brings along."""
    return ConfigError(
        f'{key} = "{name}" is for a federation (see docs/flower.md): take another name for a simulation '
        "(see `filfl list`)"
    )


class DataError(FilflError):
    """Data that cannot be used as it is."""


class RunError(FilflError):
    """A run directory that cannot be written, read or resumed."""


class PluginError(FilflError):
    """A user's own filter, selection, model, loss or metric broke the rules of its kind."""
