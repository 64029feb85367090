"""Callbacks: functions that are called after every round, and trackers that are also opened and closed with the run."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from filfl.config.config import Config
from filfl.core.server import State


@dataclass(frozen=True)
class Stop:
    """What a callback returns to end the run after this round."""

    reason: str


STOP = Stop("a callback returned filfl.STOP")
Callback = Callable[[Mapping[str, Any], State], Stop | None]
"""(record of the round with its `seconds` per phase, state after the round) -> None, or `STOP` to end the run"""


@dataclass(frozen=True)
class RunStart:
    """A run that is about to start or to resume."""

    config: Config
    directory: Path | None
    """The run directory; None if nothing is stored."""
    records: Sequence[Mapping[str, Any]]
    """The records of the rounds before a resume, with `seconds`, as callbacks receive them."""
    say: Callable[[str], None]


@runtime_checkable
class RunCallback(Protocol):
    """A callback that is opened when a run starts and closed when it ends, also after an error."""

    def follow(self, run: RunStart) -> AbstractContextManager[Callback]: ...


@contextmanager
def open_callbacks(callbacks: Sequence[Callback | RunCallback], run: RunStart) -> Iterator[list[Callback]]:
    """The callbacks of a run, after opening those that have a `follow`."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(callback.follow(run)) if isinstance(callback, RunCallback) else callback
            for callback in callbacks
        ]


def with_seconds(
    records: Sequence[Mapping[str, Any]], times: Mapping[int, Mapping[str, float]]
) -> list[dict[str, Any]]:
    """Stored records with `seconds`, as callbacks receive them."""
    return [{**record, "seconds": times.get(record["round"], {})} for record in records]
