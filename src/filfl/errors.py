"""Errors that a user can act on. The command line shows their message without a traceback."""

from collections.abc import Iterable


class FilflError(Exception):
    """The base class of every error that filfl raises on purpose. The message is cut and has no control characters: it
    may quote a config, or a library's own message, which can contain the whole of a damaged file."""

    def __init__(self, message: str = "") -> None:
        super().__init__(_cut(message))


class ConfigError(FilflError):
    """A config that cannot run. `problems` has one message per mistake, each with the key."""

    def __init__(self, problems: str | Iterable[str]) -> None:
        self.problems = [_cut(problem) for problem in ([problems] if isinstance(problems, str) else problems)]
        Exception.__init__(self, "\n".join(self.problems))


def _cut(problem: str) -> str:
    """A message without the middle of a value of thousands of characters, and without what a terminal would obey."""
    short = problem if len(problem) <= MOST else f"{problem[: MOST - 200]} ... {problem[-195:]}"
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in short)


MOST = 2000
"""The number of characters of a message."""
LONGEST = 200
"""The number of characters that a record keeps of a text from outside."""


def one_line(text: str, longest: int = LONGEST) -> str:
    """A text from a client or a node as one line for records, logs and terminals, cut to this many characters.

    Control characters (such as those of ANSI escapes), line ends, invisible and bidirectional characters and halves of
    surrogate pairs become spaces.
    """
    beginning = text[: 10 * longest]  # a node may send megabytes
    line = " ".join("".join(c if c.isprintable() else " " for c in beginning).split())
    return line if len(line) <= longest and len(text) == len(beginning) else line[: longest - 3] + "..."


def encodable(text: str) -> str:
    """A text that can be printed: names of files that are not UTF-8 have characters that cannot be encoded."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def only_from_python(section: str, name: str) -> ConfigError:
    """The message for a name such as "own" if no object was given from Python."""
    return ConfigError(
        f'{section}.name = "{name}" needs an object from Python; call filfl.simulate(config, {section}=...), or choose '
        f"another name or an import path (see `filfl list {section}`)"
    )


def only_on_flower(section: str, name: str) -> ConfigError:
    """The message for a plug-in that exists only on Flower."""
    return ConfigError(
        f'{section}.name = "{name}" exists only on Flower (see docs/flower.md); choose another name for a simulation '
        f"(see `filfl list {section}`)"
    )


class DataError(FilflError):
    """Data that cannot be used."""


class RunError(FilflError):
    """A run directory that cannot be written, read or resumed."""


class PluginError(FilflError):
    """A filter, selection, model, loss or metric of the user did not behave as its interface requires."""
