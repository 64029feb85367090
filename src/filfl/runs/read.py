"""Reading run directories, for tables and pictures."""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filfl.config import Config
from filfl.errors import RunError
from filfl.runs.store import CLIENTS, CONFIG, RECORDS, TIMES, read_lines, read_times


@dataclass(frozen=True)
class Run:
    """A run as its directory tells it."""

    directory: Path
    config: Config
    clients: list[dict[str, Any]]
    records: list[dict[str, Any]]
    times: list[dict[str, Any]]

    @property
    def noisy(self) -> set[int]:
        """The ids of the clients whose labels are random."""
        return {k for k, client in enumerate(self.clients) if client["noisy"]}


def read_run(directory: Path) -> Run:
    path = directory / CONFIG
    try:
        config = Config.from_table(tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise RunError(f"{directory} is not a run directory: {path.name}: {error.strerror}") from None
    except ValueError as error:
        raise RunError(f"{path} is damaged: {error}") from None
    clients = read_lines(directory / CLIENTS)
    if len(clients) != 1 or not isinstance(clients[0], list):
        raise RunError(f"{directory / CLIENTS} is damaged: go on with the run by --resume, which mends it")
    return Run(directory, config, clients[0], read_lines(directory / RECORDS), read_times(directory / TIMES))
