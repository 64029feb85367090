"""What the trackers share: the names of the metrics, what is remembered for a resume, and that none can harm a run."""

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Protocol

from filfl.config import Config, dotted_keys
from filfl.errors import ConfigError
from filfl.runs.files import to_json, write_whole
from filfl.runs.follow import Beginning, Callback


def metrics_of(record: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a round, by the names that they have in every tracker. What was not measured is left out."""
    numbers: dict[str, float | None] = {
        "test/accuracy": record["test_accuracy"],
        "test/loss": record["test_loss"],
        "train/loss": record["train_loss"],
        "clients/selected": len(record["selected"]),
        "clients/refused": len(record["refused"]),
        "filter/available": record["num_available"],
        "filter/kept": record["num_filtered"],
        "filter/evaluations": record["evaluations"],
        "filter/reward_all": record["reward_all"],
        "filter/reward_filtered": record["reward_filtered"],
        "uplink_MB": record["uplink_bytes"] / 1e6,
        "downlink_MB": record["downlink_bytes"] / 1e6,
        **{f"test/{_allowed(name)}": value for name, value in record["metrics"].items()},
        **{f"seconds/{phase}": value for phase, value in record["seconds"].items()},
    }
    return {name: float(value) for name, value in numbers.items() if value is not None}


def parameters(config: Config) -> dict[str, str | int | float | bool]:
    """The config by dotted keys; lists as text."""
    return {
        key: value if isinstance(value, str | int | float | bool) else to_json(value)
        for key, value in dotted_keys(config.table()).items()
    }


def run_name(config: Config) -> str:
    return f"{config.name}-seed-{config.seed}"


class Session(Protocol):
    """An open run of a tracker. A step that it already holds it does not write again."""

    id: str
    """What the tracker knows the run by."""

    def write(self, t: int, metrics: Mapping[str, float]) -> None: ...

    def close(self, finished: bool) -> None: ...


@dataclass(frozen=True)
class Tracker(ABC):
    """Writes the metrics of a run to a tracking library; one of the `callbacks` of `filfl.simulate`.

    It says once when the library fails, and the run goes on without it.
    """

    directory: str | Path | None = None
    """Where its files go; the run directory when unset."""
    name: ClassVar[str]
    needs: ClassVar[tuple[str, ...]]
    """The modules that must be there."""
    holds_many: ClassVar[bool]
    """Whether one directory takes all the runs of a comparison."""

    def __post_init__(self) -> None:
        missing = [module for module in self.needs if find_spec(module) is None]
        if missing:
            raise ConfigError(
                f"{self.name} needs {' and '.join(missing)}, not installed here: pip install 'filfl[{self.name}]'"
            )

    @abstractmethod
    def open(self, run: Beginning, known_as: str | None) -> Session:
        """Open a run of the tracker, or, with the id that it was given before, go on with that one."""

    def place(self, run: Beginning) -> Path:
        """Where the files of this run go."""
        place = run.directory if self.directory is None else Path(self.directory)
        if place is None:
            raise ConfigError(
                f"{self.name}: it is not said where its files go: write {type(self).__name__}('logs'), "
                "or call simulate(..., out=...)"
            )
        return place.absolute()

    @contextmanager
    def follow(self, run: Beginning) -> Iterator[Callback]:
        """Open, write the rounds that were made before and are missing, and then every round as it comes."""
        writing = _Writing(self, run)
        try:
            writing.begin()
            yield writing
        finally:
            writing.end()


class _Writing:
    """A session whose failures harm nobody: the first is said, and nothing is written after it."""

    def __init__(self, tracker: Tracker, run: Beginning) -> None:
        self._tracker, self._run = tracker, run
        self._path = run.directory / f"tracked-{tracker.name}.json" if run.directory else None
        self._session: Session | None = None
        self._written = 0

    def begin(self) -> None:
        self._attempt(self._open)
        for record in self._run.records:
            self(record, None)

    def __call__(self, record: Mapping[str, Any], state: object) -> None:
        if session := self._session:
            self._attempt(lambda: session.write(record["round"], metrics_of(record)))
            self._written = record["round"]

    def end(self) -> None:
        if session := self._session:
            self._attempt(lambda: session.close(self._written == self._run.config.rounds))
        if self._session:
            self._attempt(lambda: self._remember(self._written))

    def _open(self) -> None:
        before = json.loads(self._path.read_bytes()) if self._path and self._path.exists() else {}
        if before.get("rounds") != self._run.config.rounds:
            self._session = self._tracker.open(self._run, before.get("id"))
            self._remember(0)

    def _remember(self, rounds: int) -> None:
        """Keep under which id the run is known, and how many rounds are safe there."""
        if self._path and self._session:
            write_whole(self._path, to_json({"id": self._session.id, "rounds": rounds}).encode())

    def _attempt(self, step: Callable[[], None]) -> None:
        try:
            step()
        except ConfigError:
            raise
        except Exception as error:
            self._session = None
            reason = (str(error).splitlines() or [""])[0] or type(error).__name__
            self._run.say(f"{self._tracker.name} failed and is not written to any more; the run goes on: {reason}")


def _allowed(name: str) -> str:
    """A metric's name with only what every library takes."""
    return re.sub(r"[^\w. -]", "_", name, flags=re.ASCII)
