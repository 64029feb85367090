"""Which plug-ins a config can name: the built-in ones by name, a user's own by import path."""

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, get_type_hints

from filfl.aggregation import AGGREGATIONS, Aggregation
from filfl.algorithms import ALGORITHMS, Algorithm
from filfl.attacks import ATTACKS, Attack
from filfl.availability import AVAILABILITIES, Availability
from filfl.config.schema import Section, allowed, collecting, objects_of, options_of, read, show, unknown_name
from filfl.data import DATASETS, Dataset
from filfl.errors import ConfigError, only_on_flower
from filfl.filtering import FILTERS, Filter
from filfl.filtering.own import OwnFilter
from filfl.models import MODELS, Model
from filfl.selection import SELECTIONS, Selection

IMPORT_PATH = "package.module:Class"


@dataclass(frozen=True)
class Kind:
    """A section of the config whose `name` selects a plug-in."""

    base: type[Section]
    """The class from which every plug-in of this kind inherits."""
    registry: Mapping[str, type[Any]]
    """The built-in plug-ins by name."""
    default: str
    """The name if the config has none."""
    on_flower: tuple[str, ...] = ()
    """Names of plug-ins that only `filfl.flower` can supply."""

    def make(self) -> Any:
        """The default plug-in."""
        return self.registry[self.default]()


@dataclass(frozen=True, kw_only=True)
class NoFilter(Section):
    """No filtering: plain federated learning."""


NO_FILTER = "none"
"""The name of the section [filter] that switches filtering off."""
KINDS: dict[str, Kind] = {
    "data": Kind(Dataset, DATASETS, "digits"),
    "model": Kind(Model, MODELS, "mlp"),
    "availability": Kind(Availability, AVAILABILITIES, "always", on_flower=("connected",)),
    "filter": Kind(Filter, {NO_FILTER: NoFilter, **FILTERS, "own": OwnFilter}, "dgf"),
    "selection": Kind(Selection, SELECTIONS, "random"),
    "algorithm": Kind(Algorithm, ALGORITHMS, "fedavg"),
    "aggregation": Kind(Aggregation, AGGREGATIONS, "mean", on_flower=("flower",)),
    "attack": Kind(Attack, ATTACKS, "none"),
}


def plugin_class(section: str, name: object) -> type[Any]:
    """The class of a plug-in, by its name or its import path."""
    kind = KINDS[section]
    if isinstance(name, str):
        if name in kind.registry:
            return kind.registry[name]
        if name in kind.on_flower:
            raise only_on_flower(section, name)
        if ":" in name:
            return _imported(section, name)
    raise ConfigError(unknown_name(f"{section}.name", name, [*kind.registry, f"an import path {IMPORT_PATH}"]))


def on_flower(table: Mapping[str, Any]) -> bool:
    """Whether this is the config of a run on Flower."""
    names = {section: table[section].get("name") for section in KINDS if isinstance(table.get(section), Mapping)}
    return any(name in KINDS[section].on_flower for section, name in names.items())


def name_of(section: str, plugin: object) -> str:
    """The name of a plug-in in a config: from the registry, or else its import path."""
    cls, kind = type(plugin), KINDS[section]
    for name, built_in in kind.registry.items():
        if cls is built_in:
            return name
    declared = getattr(cls, "name", None)
    if isinstance(declared, str) and declared in (*kind.registry, *kind.on_flower):
        return declared  # a stand-in of filfl.flower
    return f"{cls.__module__}:{cls.__qualname__}"


def option_names(section: str, name: object) -> set[str]:
    """The options of a plug-in; empty if there is no such plug-in."""
    try:
        return set(options_of(plugin_class(section, name)))
    except ConfigError:
        return set()


def read_plugin(
    section: str, given: Mapping[str, Any], also_known: Iterable[str] = (), before: object | None = None
) -> Any:
    """The plug-in that a table describes: its `name`, and its options.

    before: the plug-in so far. If its name stays, so do the Python objects that it holds.
    """
    name = given.get("name", KINDS[section].default)
    own = {key: value for key, value in given.items() if key != "name"}
    if before is not None and name == name_of(section, before):
        cls, objects = type(before), objects_of(before)
    else:
        cls, objects = plugin_class(section, name), {}
    foreign: list[str] = []
    for key in [key for key in own if key not in options_of(cls)]:
        if owners := [other for other in KINDS[section].registry if key in option_names(section, other)]:
            listed = " and ".join([", ".join(owners[:-1]), owners[-1]] if len(owners) > 1 else owners)
            foreign.append(f"{section}.{key} is an option of {listed}, not of {name}; remove it")
            del own[key]
    problems: list[str] = []
    with collecting(problems):
        plugin = read(cls, own, section, ["name", *also_known], **objects)
    if problems or foreign:
        raise ConfigError(problems + foreign)
    return plugin


def imported_function(key: str, path: str) -> Any:
    """The function at an import path, which is the value of a key."""
    found = _object_at(f'{key} = "{path}"', path, "package.module:function", callable)
    if not callable(found):
        raise ConfigError(f'{key} = "{path}" must be a function (got a {type(found).__name__})')
    return found


def _imported(section: str, path: str) -> type[Any]:
    """The class at an import path, checked to be a plug-in of this section."""
    setting, base = f'{section}.name = "{path}"', KINDS[section].base

    def is_plugin(value: object) -> bool:
        return inspect.isclass(value) and issubclass(value, base) and value is not base

    found = _object_at(setting, path, IMPORT_PATH, is_plugin)
    parent = f"{base.__module__.removesuffix('.base')}.{base.__name__}"
    if not inspect.isclass(found) or not issubclass(found, base):
        got = f"the class {found.__name__}" if inspect.isclass(found) else f"a {type(found).__name__}"
        raise ConfigError(f"{setting} must be a class that inherits from {parent} (got {got})")
    if missing := sorted(getattr(found, "__abstractmethods__", ())):
        raise ConfigError(f"{setting} must define {' and '.join(missing)}, as {parent} requires")
    check_options(setting, found)
    return found


def _object_at(setting: str, path: str, form: str, fits: Callable[[object], bool]) -> Any:
    """The object at an import path. If there is none, the message has the names in that module whose value `fits`."""
    module, _, attribute = path.partition(":")
    if not re.fullmatch(r"\w+(\.\w+)*:\w+(\.\w+)*", path):
        raise ConfigError(f"{setting} is not an import path; write {form}")
    try:
        found: Any = import_module(module)
    except ModuleNotFoundError as error:
        if error.name and f"{module}.".startswith(f"{error.name}."):
            raise ConfigError(
                f"{setting}: there is no module {error.name}; start filfl in the folder that contains it, or add "
                "that folder to PYTHONPATH"
            ) from None
        raise ConfigError(f"{setting}: importing {module} fails: {error}") from error
    except Exception as error:
        raise ConfigError(f"{setting}: importing {module} fails: {type(error).__name__}: {error}") from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            defined = [key for key, value in vars(found).items() if fits(value) and not key.startswith("_")]
            hint = f"; it has {', '.join(defined)}" if defined else ""
            raise ConfigError(f"{setting}: {module} has no {attribute}{hint}")
        found = getattr(found, part)
    return found


def check_options(setting: str, cls: type[Any]) -> None:
    """Refuse a class with options that a config file could not set. `setting` names the class in the message."""
    if "__dataclass_fields__" not in vars(cls):
        raise ConfigError(f"{setting} must be a dataclass; put @dataclass(frozen=True, kw_only=True) above it")
    try:
        hints = get_type_hints(cls, include_extras=True)
    except Exception as error:
        raise ConfigError(f"{setting}: the types of its options cannot be read: {error}") from None
    for option in options_of(cls):
        if option == "name":
            raise ConfigError(f"{setting} cannot have an option called name, which is the key of the plug-in itself")
        try:
            allowed(hints[option])
        except TypeError as error:
            raise ConfigError(f"{setting}: the type of {show(option)} is not supported: {error}") from None
