"""The config of one run: typed, frozen, and read from TOML with errors that name the key.

Every section with a `name` is a plug-in: the name picks a class out of its folder's registry, and the rest of
the section are that class's options.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from filfl.aggregation import AGGREGATIONS, Aggregation
from filfl.aggregation.mean import Mean
from filfl.algorithms import ALGORITHMS, Algorithm
from filfl.algorithms.fedavg import FedAvg
from filfl.attacks import ATTACKS, Attack
from filfl.attacks.none import NoAttack
from filfl.availability import AVAILABILITIES, Availability
from filfl.availability.always import Always
from filfl.availability.redraw import Redraw
from filfl.data import DATASETS, Dataset, FederatedData
from filfl.data.base import Partitioned
from filfl.data.digits import Digits
from filfl.errors import ConfigError
from filfl.filtering import FILTERS
from filfl.filtering.exhaustive import MOST
from filfl.filtering.judges import JUDGES
from filfl.models import MODELS, Model
from filfl.models.mlp import MLP
from filfl.options import (
    FOLDER_NAME,
    Count,
    Whole,
    dotted,
    is_folder_name,
    read,
    show,
    unknown_name,
    write,
)
from filfl.sections import Checkpoint, Evaluate, Execution, FilterOptions, Training
from filfl.selection import SELECTIONS, Selection
from filfl.selection.divfl import DivFL
from filfl.selection.power_of_choice import PowerOfChoice
from filfl.selection.random import Random

FILTER_NAMES = ("none", *FILTERS, "own")

REGISTRIES: dict[str, Mapping[str, type[Any]]] = {
    "data": DATASETS,
    "model": MODELS,
    "availability": AVAILABILITIES,
    "selection": SELECTIONS,
    "algorithm": ALGORITHMS,
    "aggregation": AGGREGATIONS,
    "attack": ATTACKS,
}


PLAIN: dict[str, type[Any]] = {
    "filter": FilterOptions,
    "training": Training,
    "evaluate": Evaluate,
    "checkpoint": Checkpoint,
    "execution": Execution,
}


@dataclass(frozen=True, kw_only=True)
class Root:
    """The keys of a config that belong to no section."""

    name: str = "run"
    seed: Whole = 0
    rounds: Count = 20


@dataclass(frozen=True, kw_only=True)
class Config(Root):
    """One run, completely: the same config gives the same run."""

    data: Dataset = field(default_factory=Digits)
    model: Model = field(default_factory=MLP)
    availability: Availability = field(default_factory=Always)
    filter: FilterOptions = field(default_factory=FilterOptions)
    selection: Selection = field(default_factory=Random)
    algorithm: Algorithm = field(default_factory=FedAvg)
    training: Training = field(default_factory=Training)
    aggregation: Aggregation = field(default_factory=Mean)
    attack: Attack = field(default_factory=NoAttack)
    evaluate: Evaluate = field(default_factory=Evaluate)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    execution: Execution = field(default_factory=Execution)

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> "Config":
        """A config out of nested tables; raises `ConfigError` with every mistake in it."""
        problems: list[str] = []
        sections: dict[str, Any] = {}
        for section in (*REGISTRIES, *PLAIN):
            given = table.get(section, {})
            if not isinstance(given, Mapping):
                key = "mode" if section == "execution" else "name"
                example = f"{section}.{key} = {show(given)}" if isinstance(given, str) else f"[{section}]"
                problems.append(f"{section} is a section: write {example}")
                continue
            try:
                if section in REGISTRIES:
                    sections[section] = _read_plugin(section, given)
                else:
                    sections[section] = read(PLAIN[section], given, section)
            except ConfigError as error:
                problems += error.problems
        scalars = {key: value for key, value in table.items() if key not in (*REGISTRIES, *PLAIN)}
        try:
            root = read(Root, scalars, "", also_known=(*REGISTRIES, *PLAIN))
        except ConfigError as error:
            problems += error.problems
        if problems:
            raise ConfigError(problems)
        config = cls(**write(root), **sections)
        if problems := _contradictions(config):
            raise ConfigError(problems)
        return config

    def table(self) -> dict[str, Any]:
        """The complete config as nested tables; `from_table` gives this config back."""
        table = write(self)
        for section in (*REGISTRIES, *PLAIN):
            named = {"name": name_of(section, table[section])} if section in REGISTRIES else {}
            table[section] = named | write(table[section])
        return table

    def identity(self) -> dict[str, Any]:
        """The table without what does not change the result: two configs with one identity stand for the same run."""
        table = self.table()
        table["execution"].pop("workers", None)
        # As runs were identified before there were these.
        if isinstance(self.attack, NoAttack):
            del table["attack"]
        if not self.filter.optimum:
            del table["filter"]["optimum"]
        if self.filter.transport == "models":
            del table["filter"]["transport"], table["filter"]["precision"]
        return table

    def check_against(self, data: FederatedData) -> None:
        """What can only be said once the data is there."""
        N, m = data.num_clients, len(data.filter_y)
        problems = _more_than_there_are(self, N, f"the {N} clients of the data")
        if len(empty := np.flatnonzero(data.num_train < 1)):
            problems.append(f"client {data.names[empty[0]]} has no training samples ({len(empty)} of {N} have none)")
        if self.filter.name != "none" and self.filter.data in ("server", "file"):
            if m == 0:
                problems.append(
                    "the server's filtering set is empty: raise data.filtering (from Python: the argument `filtering` "
                    "of FederatedData.from_arrays), or set filter.name to none"
                )
            elif self.filter.size is not None and self.filter.size > m:
                problems.append(
                    f"filter.size must be between 1 and the {m} samples of the server's filtering set "
                    f"(got {self.filter.size})"
                )
            if self.filter.part is not None and self.filter.part > m > 0:
                problems.append(
                    f"filter.part must be between 1 and the {m} samples of the server's filtering set "
                    f"(got {self.filter.part})"
                )
            if self.filter.top is not None and self.filter.top >= data.classes:
                problems.append(
                    f"filter.top must be below the {data.classes} classes of the data (got {self.filter.top})"
                    if data.classes
                    else "filter.top is about classes, and these targets are numbers: take it away"
                )
        present = self.availability.n if isinstance(self.availability, Redraw) else N
        brute = 'filter.name = "opt"' if self.filter.name == "opt" else "filter.optimum = true"
        tries_all = self.filter.name == "opt" or (self.filter.optimum and self.filter.name != "none")
        if tries_all and min(present, self.filter.cap or present) > MOST:
            problems.append(
                f"{brute} tries all subsets of at most {MOST} clients, and {present} may be available: "
                f"set filter.cap to {MOST} or less"
            )
        if problems:
            raise ConfigError(problems)


def name_of(section: str, plugin: object) -> str:
    """The name under which a plug-in stands in its registry."""
    for name, cls in REGISTRIES[section].items():
        if type(plugin) is cls:
            return name
    raise ConfigError(f"{section}: {type(plugin).__name__} has no name: add it to the registry of its folder")


def default_name(section: str) -> str:
    return name_of(section, getattr(Config(), section))


def option_names(section: str, name: str) -> set[str]:
    """The options of one plug-in."""
    return {f.name for f in dataclasses.fields(REGISTRIES[section][name])}


def _read_plugin(section: str, given: Mapping[str, Any]) -> Any:
    registry = REGISTRIES[section]
    name = given.get("name", default_name(section))
    if not isinstance(name, str) or name not in registry:
        raise ConfigError(unknown_name(dotted(section, "name"), name, registry))
    options = {key: value for key, value in given.items() if key != "name"}
    elsewhere = []
    for key in list(options):
        owners = [other for other in registry if key in option_names(section, other)]
        if owners and name not in owners:
            elsewhere.append(f"{section}.{key} belongs to {' and '.join(owners)}, not to {name}: remove it")
            del options[key]
    try:
        plugin = read(registry[name], options, section, also_known=["name"])
    except ConfigError as error:
        raise ConfigError([*error.problems, *elsewhere]) from None
    if elsewhere:
        raise ConfigError(elsewhere)
    return plugin


def _more_than_there_are(config: Config, N: int, words: str) -> list[str]:
    asked = {"selection.k": config.selection.k}
    if isinstance(config.availability, Redraw):
        asked["availability.n"] = config.availability.n
    return [f"{key} must be between 1 and {words} (got {value})" for key, value in asked.items() if value > N]


def _of_divfl(divfl: DivFL, filter: FilterOptions) -> list[str]:
    by_logits = filter.transport == "logits" and filter.name != "none"
    if divfl.of == "gradients" and by_logits:
        return [
            'selection.of = "gradients" makes all of S^f upload a vector as large as the model, which filter.transport '
            '= "logits" is there to avoid: write selection.of = "predictions" (or "updates")'
        ]
    if divfl.of == "predictions" and not by_logits:
        return [
            'selection.of = "predictions" goes by the logits of filter rounds: set filter.transport to "logits", or '
            'selection.of to "gradients" or "updates"'
        ]
    return []


def _contradictions(config: Config) -> list[str]:
    """Values that are fine each by itself and impossible together."""
    problems = []
    k, training = config.selection.k, config.training
    if not is_folder_name(config.name):
        problems.append(f"name must be {FOLDER_NAME} (got {show(config.name)})")
    if isinstance(config.availability, Redraw) and k > config.availability.n:
        problems.append(f"selection.k must be between 1 and the {config.availability.n} available clients (got {k})")
    if isinstance(config.data, Partitioned):
        problems += _more_than_there_are(config, config.data.clients, f"data.clients = {config.data.clients}")
    if isinstance(config.selection, PowerOfChoice) and config.selection.d is not None and config.selection.d < k:
        problems.append(f"selection.d must be at least selection.k = {k} (got {config.selection.d})")
    if config.filter.name not in FILTER_NAMES:
        problems.append(unknown_name("filter.name", config.filter.name, FILTER_NAMES))
    elif config.filter.name != "none" and config.filter.cap is not None and k > config.filter.cap:
        problems.append(f"selection.k must be between 1 and filter.cap = {config.filter.cap} (got {k})")
    problems += config.filter.contradictions_of_transport()
    if isinstance(config.selection, DivFL):
        problems += _of_divfl(config.selection, config.filter)
    if (config.filter.data == "file") != (config.filter.path is not None):
        problems.append('filter.path and filter.data = "file" go together: set both or none')
    if config.filter.reward == "ensemble" and config.filter.data in JUDGES:
        problems.append(
            f'filter.reward = "ensemble" needs samples that the server holds, and with filter.data = '
            f'"{config.filter.data}" it holds none: set filter.data to "server" or "file"'
        )
    if config.filter.optimum and config.filter.data in JUDGES:
        problems.append(
            f'filter.optimum is for the record alone, and with filter.data = "{config.filter.data}" clients would be '
            f'asked about every subset: set filter.data to "server" or "file", or take filter.optimum away'
        )
    if config.execution.half and config.execution.memory is None:
        problems.append(
            "execution.half is for weights that do not fit into execution.memory: set that too, or take half away"
        )
    if config.filter.reward == "average" and config.filter.verify:
        problems.append(
            f'filter.reward = "average" is the true reward, so there is nothing to verify (got filter.verify = '
            f'{config.filter.verify}): set filter.verify to 0, or filter.reward to "ensemble"'
        )
    if training.epochs is not None and training.steps is not None:
        problems.append(f"training.epochs = {training.epochs} and training.steps = {training.steps}: set only one")
    for schedule, needed in {"step": ("factor", "every"), "inverse": ("beta",)}.items():
        if training.schedule == schedule:
            missing = [f"training.{option}" for option in needed if getattr(training, option) is None]
            if missing:
                problems.append(f'training.schedule = "{schedule}" needs {" and ".join(missing)}')
    return problems
