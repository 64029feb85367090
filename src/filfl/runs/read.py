"""Reading run directories, for tables and pictures."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from filfl.availability.base import Availability, Ids
from filfl.errors import RunError
from filfl.plugins import read_plugin
from filfl.runs.registered import Registered
from filfl.runs.store import CLIENTS, CONFIG, RECORDS, TIMES, read_lines, read_times


@dataclass(frozen=True)
class Run:
    """A run as its directory tells it."""

    directory: Path
    config: Mapping[str, Any]
    """The content of config.toml. Its plug-ins do not have to be importable."""
    clients: Registered
    records: list[dict[str, Any]]
    times: list[dict[str, Any]]

    def may_be_chosen(self, record: Mapping[str, Any]) -> Ids:
        """The clients out of which A_t was chosen, also where the record does not list them."""
        listed = record["available"] if record["filtered"] is None else record["filtered"]
        if listed is None:
            availability: Availability = read_plugin("availability", self.config["availability"])
            return availability(record["round"], len(self.clients), self.config["seed"])
        return np.array(listed, dtype=np.int64)


def read_run(directory: Path) -> Run:
    path = directory / CONFIG
    try:
        config = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RunError(f"{directory} is not a run directory: {path.name}: {error.strerror}") from None
    except ValueError as error:
        raise RunError(f"{path} is damaged: {error}") from None
    clients = Registered.read(directory / CLIENTS)
    return Run(directory, config, clients, read_lines(directory / RECORDS), read_times(directory / TIMES))
