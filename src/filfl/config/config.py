"""The config of one run: typed, frozen, and read from TOML with errors that name the key.

A section with a `name` is a plug-in: the name selects a class, and the other keys of the section are its options.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import nn

from filfl.aggregation import Aggregation
from filfl.algorithms import Algorithm
from filfl.attacks import Attack
from filfl.availability import Availability
from filfl.config.plugins import KINDS, NoFilter, check_options, name_of, option_names, read_plugin
from filfl.config.schema import (
    FOLDER_NAME,
    NOT_AN_OPTION,
    Count,
    Section,
    Whole,
    changed,
    collecting,
    is_folder_name,
    misfits,
    objects_of,
    options_of,
    read,
    show,
    write,
)
from filfl.config.sections import Checkpoint, Evaluate, Execution, FilterOptions, Training
from filfl.core.guard import Guard
from filfl.data import Dataset, FederatedData
from filfl.data.arrays import Arrays
from filfl.display import as_html, as_text, count
from filfl.errors import ConfigError, DataError, PluginError, only_from_python
from filfl.filtering import Filter, FilterFunction
from filfl.filtering.own import OwnFilter
from filfl.models import Model
from filfl.models.own import OwnModel
from filfl.selection import OwnSelection, Selection, Selects

GENERAL: dict[str, type[Section]] = {
    "training": Training,
    "guard": Guard,
    "evaluate": Evaluate,
    "checkpoint": Checkpoint,
    "execution": Execution,
}
"""The sections without a plug-in."""
SECTIONS = (*KINDS, *GENERAL)
ALTERNATIVES = {"training.steps": "training.epochs", "training.epochs": "training.steps"}
"""Setting one of these unsets the other."""
OPTIMIZER = "training.optimizer"
"""Setting another one unsets training.options, which are those of one optimizer."""
CHANGED_FIRST = (".name", OPTIMIZER)
"""These change which other options there are."""
UNSET = "unset"
"""The value that removes an option, as in filter.size = "unset"."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """A complete run: the same config gives the same run."""

    name: str = "run"
    """The name of the run and of its folder: letters, digits and - _ + = . , beginning with a letter or digit."""
    seed: Whole = 0
    """The seed of all randomness. Runs with equal seeds share data split, availability and initial weights."""
    rounds: Count = 20
    """T, the number of rounds."""
    data: Dataset = field(default_factory=KINDS["data"].make, metadata=NOT_AN_OPTION)
    model: Model = field(default_factory=KINDS["model"].make, metadata=NOT_AN_OPTION)
    availability: Availability = field(default_factory=KINDS["availability"].make, metadata=NOT_AN_OPTION)
    filter: FilterOptions = field(default_factory=FilterOptions, metadata=NOT_AN_OPTION)
    selection: Selection = field(default_factory=KINDS["selection"].make, metadata=NOT_AN_OPTION)
    algorithm: Algorithm = field(default_factory=KINDS["algorithm"].make, metadata=NOT_AN_OPTION)
    training: Training = field(default_factory=Training, metadata=NOT_AN_OPTION)
    aggregation: Aggregation = field(default_factory=KINDS["aggregation"].make, metadata=NOT_AN_OPTION)
    attack: Attack = field(default_factory=KINDS["attack"].make, metadata=NOT_AN_OPTION)
    guard: Guard = field(default_factory=Guard, metadata=NOT_AN_OPTION)
    evaluate: Evaluate = field(default_factory=Evaluate, metadata=NOT_AN_OPTION)
    checkpoint: Checkpoint = field(default_factory=Checkpoint, metadata=NOT_AN_OPTION)
    execution: Execution = field(default_factory=Execution, metadata=NOT_AN_OPTION)

    @classmethod
    def read(cls, source: object) -> "Config":
        """A config from a `Config`, a mapping such as {"filter.name": "rgf"}, or a TOML file or its name.

        Call `with_own` on the result: it checks the config as a whole, once the objects given from Python are known.
        """
        if isinstance(source, Config):
            return source
        if isinstance(source, Mapping) and all(isinstance(key, str) for key in source):
            return cls._read(override({}, source))
        if isinstance(source, str | Path):
            from filfl.config.experiment import Experiment

            return cls._read(Experiment.load(source).base)
        raise ConfigError(f"config must be a Config, a mapping of keys, or a TOML file (got {source!r})")

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> "Config":
        """A config from nested tables. Raises `ConfigError` with all mistakes."""
        config = cls._read(table)
        config.check()
        return config

    def with_changes(self, changes: Mapping[str, Any]) -> "Config":
        """This config with some keys changed, such as {"filter.name": "rgf", "rounds": 10}.

        If the plug-in of a section changes, the options that the new one does not have are dropped.
        """
        config = self._read(override(self.table(), changes), self)
        config.check()
        return config

    @classmethod
    def _read(cls, table: Mapping[str, Any], before: "Config | None" = None) -> "Config":
        """A config before `check`. A plug-in that stays the same keeps the Python objects that it has in `before`."""
        problems: list[str] = []
        sections: dict[str, Any] = {}
        for section in SECTIONS:
            with collecting(problems):
                sections[section] = _read_section(section, table.get(section, {}), getattr(before, section, None))
        with collecting(problems):
            outside = {key: value for key, value in table.items() if key not in SECTIONS}
            config = read(cls, outside, "", also_known=SECTIONS, **sections)
        if problems:
            raise ConfigError(problems)
        return config

    def with_own(
        self,
        *,
        data: FederatedData | Dataset | None = None,
        model: Callable[[], nn.Module] | Model | None = None,
        filter: FilterFunction | Filter | None = None,
        selection: Selects | Selection | None = None,
    ) -> "Config":
        """This config, checked, with objects given from Python in place of the plug-ins that it names.

        The general options of a section, such as selection.k, are kept for a function and are replaced by those of a
        plug-in.
        """
        given = {"data": data, "model": model, "filter": filter, "selection": selection}
        own = {argument: self._own(argument, value) for argument, value in given.items() if value is not None}
        if "filter" in own:
            own["filter"] = replace(self.filter, method=own["filter"])
        config = replace(self, **own)
        config.check()
        return config

    def _own(self, argument: str, value: Any) -> Any:
        """An object given from Python as a plug-in."""
        base = KINDS[argument].base
        if isinstance(value, base):
            check_options(f"{argument}: {type(value).__name__}", type(value))
            return value
        if argument == "data":
            if not isinstance(value, FederatedData):
                made = "as made by FederatedData.from_arrays(x, y, client_ids) or from_frame(frame, client=, target=)"
                raise DataError(f"data must be FederatedData, {made} (got {type(value).__name__})")
            return Arrays(data=value, noisy=self.data.noisy, wrong_labels=self.data.wrong_labels)
        if argument == "model" and isinstance(value, nn.Module):
            raise PluginError("model must be a function that makes a new module, such as lambda: nn.Linear(8, 3)")
        kinds = f"{argument} must be a plug-in or a function"
        if isinstance(value, type) and issubclass(value, base):
            raise PluginError(f"{kinds}; use {value.__name__}() instead of the class")
        if not callable(value):
            raise PluginError(f"{kinds} (got {type(value).__name__})")
        if argument == "model":
            return OwnModel(make=value)
        return OwnFilter(function=value) if argument == "filter" else OwnSelection(function=value, k=self.selection.k)

    def require_objects(self) -> None:
        """Raise `ConfigError` if the config names an object from Python ("own", "arrays") that was not given."""
        for section in KINDS:
            plugin = self.filter.method if section == "filter" else getattr(self, section)
            if plugin and any(given is None for given in objects_of(plugin).values()):
                raise only_from_python(section, name_of(section, plugin))

    def table(self) -> dict[str, Any]:
        """The complete config as nested tables, from which `from_table` makes this config again."""
        table = write(self)
        for section, plugin in objects_of(self).items():
            if section == "filter":
                method = write(self.filter.method) if self.filter.method else {}
                table[section] = {"name": self.filter.name} | write(plugin) | method
            else:
                table[section] = ({"name": name_of(section, plugin)} if section in KINDS else {}) | write(plugin)
        return table

    def identity(self) -> dict[str, Any]:
        """The table without what does not change the result. Configs with equal identity are the same run."""
        return identity_of(self.table())

    def __repr__(self) -> str:
        return as_text(*self._description())

    def _repr_html_(self) -> str:
        return as_html(*self._description())

    def _description(self) -> tuple[str, dict[str, str]]:
        """The plug-in of every section, and the options that differ from their defaults."""
        facts = {}
        for section in SECTIONS:
            plugin = getattr(self, section)
            options = changed(plugin) | (changed(plugin.method) if section == "filter" and plugin.method else {})
            texts = [f"{key} = {UNSET if value is None else show(value)}" for key, value in options.items()]
            name = self.filter.name if section == "filter" else name_of(section, plugin) if section in KINDS else None
            facts[section] = ", ".join([name, *texts] if name else texts)
        shown = {section: text for section, text in facts.items() if text}
        return f"Config {self.name}: {count(self.rounds, 'round')}, seed {self.seed}", shown

    def check(self) -> None:
        """Raise `ConfigError` with all values outside their range and all contradictions between options."""
        problems = misfits(self, "")
        problems += [text for section in SECTIONS for text in misfits(getattr(self, section), section)]
        if self.filter.method:
            problems += misfits(self.filter.method, "filter")
        if problems:
            raise ConfigError(problems)
        if not is_folder_name(self.name):
            problems.append(f"name must be {FOLDER_NAME} (got {show(self.name)})")
        problems += [text for section in SECTIONS for text in getattr(self, section).problems(self)]
        if problems:
            raise ConfigError(problems)

    def check_against(self, data: FederatedData) -> None:
        """Raise `ConfigError` with all contradictions between the config and the data."""
        if problems := [text for section in SECTIONS for text in getattr(self, section).problems_with(self, data)]:
            raise ConfigError(problems)


def identity_of(table: Mapping[str, Any]) -> dict[str, Any]:
    """The identity of the config with this complete table, such as the config.toml of a run."""
    left_out = {"execution": "workers", "guard": "stop_after"}
    sections = {name: {k: v for k, v in table.get(name, {}).items() if k != key} for name, key in left_out.items()}
    return {**table, **sections}


def override(table: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A table after changes such as {"filter.name": "rgf", "rounds": 10}.

    If the plug-in of a section changes, the options that the new one does not have are dropped.
    """
    changes = dotted_keys(changes)
    result: dict[str, Any] = {k: dict(v) if isinstance(v, Mapping) else v for k, v in table.items()}
    for key, value in sorted(changes.items(), key=lambda change: not change[0].endswith(CHANGED_FIRST)):
        section, _, option = key.partition(".")
        if not option:
            result[key] = value
            continue
        options = result.setdefault(section, {})
        if not isinstance(options, dict):
            raise ConfigError(f"{section} is a section, so {key} cannot be set")
        if option == "name" and section in KINDS:
            old = options.get("name", KINDS[section].default)
            for other in option_names(section, old) - option_names(section, value) if value != old else ():
                options.pop(other, None)
        if key == OPTIMIZER and value != options.get(option):
            options.pop("options", None)
        option, _, inner = option.partition(".")
        if inner:  # training.options.betas
            before = options.get(option)
            value = {**(before if isinstance(before, Mapping) else {}), inner: value}
        options[option] = value
        if value == UNSET:
            del options[option]
        if key in ALTERNATIVES and ALTERNATIVES[key] not in changes:
            options.pop(ALTERNATIVES[key].rpartition(".")[2], None)
    return result


def dotted_keys(table: Mapping[str, Any]) -> dict[str, Any]:
    """{"filter": {"name": "dgf"}} and {"filter.name": "dgf"} both as the latter."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping) and "." not in key:
            flat |= {f"{key}.{option}": inner for option, inner in value.items()}
        else:
            flat[key] = value
    return flat


def _read_section(section: str, given: Any, before: Any) -> Any:
    if not isinstance(given, Mapping):
        key = "mode" if section == "execution" else "name"
        example = f"{section}.{key} = {show(given)}" if isinstance(given, str) else f"[{section}]"
        raise ConfigError(f"{section} is a section; write {example}")
    if section == "filter":
        return _read_filter(given, before.method if before else None)
    if section in KINDS:
        return read_plugin(section, given, before=before)
    return read(GENERAL[section], given, section)


def _read_filter(given: Mapping[str, Any], before: Filter | None) -> FilterOptions:
    """The section [filter]: general options, and the options of the filter that it names."""
    general = options_of(FilterOptions)
    problems: list[str] = []
    with collecting(problems):
        options = read(FilterOptions, {key: value for key, value in given.items() if key in general}, "filter")
    with collecting(problems):
        own = {key: value for key, value in given.items() if key not in general}
        method = read_plugin("filter", own, general, before)
    if problems:
        raise ConfigError(problems)
    return replace(options, method=None if isinstance(method, NoFilter) else method)
