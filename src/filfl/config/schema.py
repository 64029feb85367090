"""Read frozen dataclasses from tables, with errors that name the key, the value and what is allowed.

The options of a section or a plug-in are the fields of its dataclass. Each field states the type, the range and the
default of its option; the string below it describes the option.
"""

import contextlib
import dataclasses
import difflib
import math
import numbers
import re
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from filfl.errors import ConfigError, one_line

if TYPE_CHECKING:
    from filfl.config.config import Config
    from filfl.data import FederatedData

T = TypeVar("T")

LARGEST = 2**63 - 1
"""The largest whole number of an option: those of numpy and torch have 64 bits."""


class Section:
    """The base class of every section and every plug-in. A subclass is a frozen dataclass of options."""

    def problems(self, config: "Config") -> list[str]:
        """One message for each contradiction between these options and the rest of the config."""
        return []

    def problems_with(self, config: "Config", data: "FederatedData") -> list[str]:
        """The same for contradictions that depend on the data. Called once the data is loaded."""
        return []


@dataclass(frozen=True)
class Range:
    """The numbers that an option may take. `above` and `below` exclude their bound."""

    at_least: float = -math.inf
    at_most: float = math.inf
    above: float = -math.inf
    below: float = math.inf

    def __contains__(self, value: float) -> bool:
        return self.at_least <= value <= self.at_most and self.above < value < self.below

    def __str__(self) -> str:
        if math.isfinite(self.at_least) and math.isfinite(self.at_most):
            return f"between {self.at_least:g} and {self.at_most:g}"
        ends = {"of at least": self.at_least, "of at most": self.at_most, "above": self.above, "below": self.below}
        return " and ".join(f"{word} {end:g}" for word, end in ends.items() if math.isfinite(end))


Count = Annotated[int, Range(at_least=1)]
Whole = Annotated[int, Range(at_least=0)]
Share = Annotated[float, Range(at_least=0, below=1)]
Fraction = Annotated[float, Range(at_least=0, at_most=1)]
Positive = Annotated[float, Range(above=0)]
NonNegative = Annotated[float, Range(at_least=0)]


NOT_AN_OPTION = {"option": False}
"""The metadata of a field that a config file cannot set because it holds a Python object."""


def options_of(cls: type[Any]) -> dict[str, dataclasses.Field[Any]]:
    """The options of a dataclass by name."""
    return {f.name: f for f in dataclasses.fields(cls) if f.init and f.metadata.get("option", True)}


def objects_of(instance: Any) -> dict[str, Any]:
    """The Python objects that an instance holds beside its options, by the name of the field."""
    fields = [f for f in dataclasses.fields(instance) if not f.metadata.get("option", True)]
    return {f.name: getattr(instance, f.name) for f in fields}


class _Misfit(Exception):
    """A value that an option cannot take."""


@contextlib.contextmanager
def collecting(problems: list[str]) -> Iterator[None]:
    """Add the problems of a `ConfigError` to a list, so that those of several parts are reported together."""
    try:
        yield
    except ConfigError as error:
        problems += error.problems


def read(cls: type[T], table: Mapping[str, Any], where: str, also_known: Iterable[str] = (), **objects: Any) -> T:
    """Make an instance of the dataclass `cls` from a table.

    where: the name of the section, "" for the keys outside any section.
    also_known: further keys to suggest when a key is unknown.
    objects: the values of the fields that are not options.
    """
    fields = options_of(cls)
    problems = [unknown_key(where, key, [*fields, *also_known]) for key in table if key not in fields]
    values, misfits = _converted(cls, {name: table[name] for name in fields if name in table}, where)
    problems += misfits
    for name, field in fields.items():
        if name not in table and field.default is field.default_factory is dataclasses.MISSING:
            hint = get_type_hints(cls, include_extras=True)[name]
            problems.append(f"{dotted(where, name)} is missing; it must be {allowed(hint)}")
    if problems:
        raise ConfigError(problems)
    return cls(**values, **objects)


def misfits(instance: Any, where: str) -> list[str]:
    """One message for each option of an instance with a value of the wrong type or outside its range."""
    return _converted(type(instance), _values(instance), where)[1]


def write(instance: Any) -> dict[str, Any]:
    """The table from which `read` makes this instance. Options that are None are left out."""
    values, _ = _converted(type(instance), _values(instance), "")  # so that 1 and 1.0 give the same table
    return {
        name: list(value) if isinstance(value, tuple) else value for name, value in values.items() if value is not None
    }


def changed(instance: Any) -> dict[str, Any]:
    """The options of an instance that do not have their default value."""
    usual = {
        name: field.default_factory() if callable(field.default_factory) else field.default
        for name, field in options_of(type(instance)).items()
    }
    return {name: value for name, value in _values(instance).items() if value != usual[name]}


def _values(instance: Any) -> dict[str, Any]:
    return {name: getattr(instance, name) for name in options_of(type(instance))}


def _converted(cls: type[Any], given: Mapping[str, Any], where: str) -> tuple[dict[str, Any], list[str]]:
    """Options in the types of their fields; and a message for each value that does not fit, which is left as it is."""
    hints = get_type_hints(cls, include_extras=True)
    values, problems = dict(given), []
    for name, value in given.items():
        try:
            values[name] = _convert(value, hints[name])
        except _Misfit:
            problems.append(f"{dotted(where, name)} must be {allowed(hints[name])} (got {one_line(show(value))})")
    return values, problems


def is_folder_name(name: str) -> bool:
    """Whether a folder can have this name on every operating system."""
    return re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_+=.-]*", name) is not None


FOLDER_NAME = "letters, digits and - _ + = . , beginning with a letter or digit"


def unknown_key(where: str, key: str, known: Iterable[str]) -> str:
    """The message for an unknown key, with the closest known key."""
    known = list(known)
    nearest = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    hint = f"did you mean {dotted(where, nearest[0])}?" if nearest else f"known here: {', '.join(known)}"
    return f"unknown key {dotted(where, key)}; {hint}"


def unknown_name(key: str, name: object, known: Iterable[str]) -> str:
    """The message for an unknown name, with the closest known name."""
    known = list(known)
    nearest = difflib.get_close_matches(str(name).lower(), known, n=1)
    hint = f"; did you mean {show(nearest[0])}?" if nearest else ""
    return f"{key} must be one of {', '.join(known)} (got {show(name)}){hint}"


def dotted(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key


def show(value: object) -> str:
    """A value as it is written in TOML."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and abs(value) > LARGEST:
        return "a huge number"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {show(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(show, value)) + "]"
    return f'"{value}"' if isinstance(value, str) else str(value)


def _convert(value: Any, hint: Any) -> Any:
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        converted = _convert(value, args[0])
        if converted is not None and any(converted not in r for r in args[1:] if isinstance(r, Range)):
            raise _Misfit
        return converted
    if origin in (Union, types.UnionType):
        if value is None and type(None) in args:
            return None
        return _convert(value, next(a for a in args if a is not type(None)))
    if origin is tuple and args[0] is str:
        value = _as_texts(value)
    if origin is tuple and isinstance(value, list | tuple):
        return tuple(_convert(item, args[0]) for item in value)
    if origin is Mapping and isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return dict(value)
    if origin is Literal and value in args and type(value) in {type(a) for a in args}:
        return value
    if hint is float and isinstance(value, numbers.Real) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:
            raise _Misfit from None
        if math.isfinite(number):
            return number
    if (
        hint is int
        and isinstance(value, numbers.Integral)
        and not isinstance(value, bool)
        and abs(int(value)) <= LARGEST
    ):
        return int(value)
    if hint in (str, bool) and isinstance(value, hint):
        return value
    raise _Misfit


def _as_texts(value: Any) -> Any:
    """A list of texts also from one text with commas, as in `--set data.trusted=ann,bob`, and from whole numbers."""
    if isinstance(value, str):
        value = [text.strip().strip("\"'") for text in value.strip("[] ").split(",")]
    items = value if isinstance(value, list | tuple) else [value]
    known = all(isinstance(item, str) or (type(item) is int and abs(item) <= LARGEST) for item in items)
    return [str(item) for item in items] if known else value


def allowed(hint: Any) -> str:
    """What a type allows, in words."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return " ".join([allowed(args[0]), *(str(r) for r in args[1:] if isinstance(r, Range))])
    if origin in (Union, types.UnionType):
        return allowed(next(a for a in args if a is not type(None)))
    if origin is Literal:
        return "one of " + ", ".join(str(a) for a in args)
    if origin is tuple:
        return f"a list, each item {allowed(args[0])}"
    if origin is Mapping:
        return "a table of options"
    names = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
    if hint not in names:
        raise TypeError(f"options cannot have the type {getattr(hint, '__name__', hint)}")
    return names[hint]
