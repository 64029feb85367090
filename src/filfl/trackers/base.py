"""What the trackers share: metric names, the state needed to resume, and protection of the run from their errors."""

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Protocol

from filfl.config.config import Config, dotted_keys
from filfl.errors import ConfigError
from filfl.runs.callbacks import Callback, RunStart
from filfl.runs.files import to_json, write_atomic

NOT_ALLOWED = re.compile(r"[^\w. -]", re.ASCII)
"""Characters that not every library accepts in the name of a metric."""


def metrics_of(record: Mapping[str, Any]) -> dict[str, float]:
    """The metrics of a round, with the same names in every tracker. Metrics without a value are left out."""
    numbers: dict[str, float | None] = {
        "test/accuracy": record["test_accuracy"],
        "test/loss": record["test_loss"],
        "train/selected_loss": record["selected_train_loss"],
        "clients/selected": len(record["selected"]),
        "clients/refused": len(record["refused"]),
        "filter/available": record["num_available"],
        "filter/kept": record["num_filtered"],
        "filter/evaluations": record["evaluations"],
        "filter/reward_all": record["reward_all"],
        "filter/reward_filtered": record["reward_filtered"],
        "uplink_MB": record["uplink_bytes"] / 1e6,
        "downlink_MB": record["downlink_bytes"] / 1e6,
        **{f"test/{NOT_ALLOWED.sub('_', name)}": value for name, value in record["metrics"].items()},
        **{f"seconds/{phase}": value for phase, value in record["seconds"].items()},
    }
    return {name: float(value) for name, value in numbers.items() if value is not None}


def parameters(config: Config) -> dict[str, str | int | float | bool]:
    """The config as {"section.key": value}; lists are written as text."""
    return {
        key: value if isinstance(value, str | int | float | bool) else to_json(value)
        for key, value in dotted_keys(config.table()).items()
    }


def run_name(config: Config) -> str:
    return f"{config.name}-seed-{config.seed}"


class Session(Protocol):
    """An open run of a tracker. It does not write a step again that the tracker already has."""

    id: str
    """The run's identifier in the tracker."""

    def write(self, t: int, metrics: Mapping[str, float]) -> None: ...

    def close(self, finished: bool) -> None: ...


@dataclass(frozen=True)
class Tracker(ABC):
    """Logs the metrics of a run with a tracking library. Pass it in the `callbacks` of `filfl.simulate`.

    If the library fails, the failure is reported once and the run continues without it.
    """

    directory: str | Path | None = None
    """Directory for its files. Default: the run directory."""
    name: ClassVar[str]
    needs: ClassVar[tuple[str, ...]]
    """The modules that must be installed."""
    holds_many: ClassVar[bool]
    """Whether all runs of a comparison can be logged to one directory."""

    def __post_init__(self) -> None:
        if missing := " and ".join(module for module in self.needs if find_spec(module) is None):
            raise ConfigError(f"{self.name} needs {missing}; install with pip install 'filfl[{self.name}]'")

    @abstractmethod
    def open(self, run: RunStart, id: str | None) -> Session:
        """Open a run in the tracker. With the id of an earlier session, continue that run."""

    def directory_of(self, run: RunStart) -> Path:
        directory = run.directory if self.directory is None else Path(self.directory)
        if directory is None:
            raise ConfigError(
                f"{self.name} has no directory for its files; write {type(self).__name__}('logs'), or call "
                "simulate(..., out=...)"
            )
        return directory.absolute()

    @contextmanager
    def follow(self, run: RunStart) -> Iterator[Callback]:
        """Open the tracker, log the earlier rounds that it does not have, then every new round."""
        writing = _Writing(self, run)
        try:
            writing.begin()
            yield writing
        except BaseException:
            writing.end(finished=False)
            raise
        writing.end(finished=True)


class _Writing:
    """A session that cannot stop the run: the first failure is reported, and nothing is written after it."""

    def __init__(self, tracker: Tracker, run: RunStart) -> None:
        self._tracker, self._run = tracker, run
        self._path = run.directory / f"tracked-{tracker.name}.json" if run.directory else None
        self._session: Session | None = None
        self._written = 0

    def begin(self) -> None:
        with self._reported():
            before = json.loads(self._path.read_bytes()) if self._path and self._path.exists() else {}
            if before.get("rounds") != self._run.config.rounds:
                self._session = self._tracker.open(self._run, before.get("id"))
                self._remember(self._session)
        for record in self._run.records:
            self(record, None)

    def __call__(self, record: Mapping[str, Any], state: object) -> None:
        with self._reported():
            if self._session:
                self._session.write(record["round"], metrics_of(record))
                self._written = record["round"]

    def end(self, finished: bool) -> None:
        with self._reported():
            if self._session:
                self._session.close(finished)
                self._remember(self._session)

    def _remember(self, session: Session) -> None:
        """Store the run's id in the tracker, and how many of its rounds are known to be written."""
        if self._path:
            write_atomic(self._path, to_json({"id": session.id, "rounds": self._written}).encode())

    @contextmanager
    def _reported(self) -> Iterator[None]:
        try:
            yield
        except ConfigError:
            raise
        except Exception as error:
            self._session = None
            reason = (str(error).splitlines() or [""])[0] or type(error).__name__
            self._run.say(f"{self._tracker.name} failed; the run continues without it: {reason}")
