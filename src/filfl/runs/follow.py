"""Callbacks: what is called after every round, and what is also opened before the first and closed after the last."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from filfl.config import Config
from filfl.server import State

Callback = Callable[[Mapping[str, Any], State], None]
"""(record of the round with its `seconds` by phase, state after it) -> None"""


@dataclass(frozen=True)
class Beginning:
    """A run that is about to begin, or to go on."""

    config: Config
    directory: Path | None
    """The run directory; None where nothing is kept."""
    records: Sequence[Mapping[str, Any]]
    """The rounds that were made before, as a callback would have been given them."""
    say: Callable[[str], None]


@runtime_checkable
class Follows(Protocol):
    """Something that wants to know when a run begins and ends: what `follow` opens is closed whatever happens."""

    def follow(self, run: Beginning) -> AbstractContextManager[Callback]: ...


@contextmanager
def following(callbacks: Sequence[Callback | Follows], run: Beginning) -> Iterator[list[Callback]]:
    """The callbacks of a run, those that follow it opened."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(callback.follow(run)) if isinstance(callback, Follows) else callback
            for callback in callbacks
        ]


def with_seconds(records: Sequence[Mapping[str, Any]], times: Sequence[Mapping[str, float]]) -> list[dict[str, Any]]:
    """Stored records as a callback was given them."""
    seconds = {line["round"]: {phase: s for phase, s in line.items() if phase != "round"} for line in times}
    return [{**record, "seconds": seconds.get(record["round"], {})} for record in records]
