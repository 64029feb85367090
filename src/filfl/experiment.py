"""An experiment file: the config of one run, and the arms that change something in it."""

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any

from filfl.config import REGISTRIES, Config, default_name, option_names
from filfl.errors import ConfigError
from filfl.options import FOLDER_NAME, Count, Fraction, is_folder_name, read, show, unknown_name

INSTEAD = {"training.steps": "training.epochs", "training.epochs": "training.steps"}
"""Setting the one unsets the other."""
UNSET = "unset"
"""The value that takes an option of the base away, as in filter.size = "unset"."""


@dataclass(frozen=True)
class Arm:
    """One column of a comparison: what it changes, and the arm that it is tested against."""

    name: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    against: str | None = None


@dataclass(frozen=True, kw_only=True)
class Compare:
    """How `filfl compare` runs and reads the arms."""

    title: str | None = None
    """The heading of the table and the pictures; unset: the experiment's name."""
    seeds: Count = 3
    target: Fraction | None = None
    """The accuracy of "rounds to target"; unset: nine tenths of the best final accuracy."""
    at: tuple[Count, ...] = ()
    """The rounds whose accuracy the table shows; unset: a sixth, a half and the end."""


@dataclass(frozen=True)
class Experiment:
    """A base table, its arms, and how to compare them."""

    base: Mapping[str, Any]
    arms: tuple[Arm, ...] = ()
    compare: Compare = Compare()
    scales: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Changes to the base by name, such as the size of the paper's own runs."""

    @classmethod
    def load(cls, source: str | Path) -> "Experiment":
        """Read a TOML file, or one of the experiments that come with filfl, by name."""
        path = Path(source)
        shipped = resources.files("filfl") / "experiments" / f"{source}.toml"
        try:
            if path.is_dir():
                raise ConfigError(f"{source} is a folder, not a TOML file")
            if path.is_file():
                text = path.read_text(encoding="utf-8-sig")
            elif shipped.is_file():
                text = shipped.read_text(encoding="utf-8")
            else:
                known = ", ".join(shipped_names())
                raise ConfigError(f"there is no file {source}, and no experiment of that name (known: {known})")
            table = tomllib.loads(text)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{source} is not valid TOML: {error}") from None
        except OSError as error:
            raise ConfigError(f"{source} cannot be read: {error.strerror}") from None
        return cls.from_table(table)

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> "Experiment":
        extras = ("arms", "compare", "scale")
        base = {key: value for key, value in table.items() if key not in extras}
        arms = []
        for key in extras:
            if not isinstance(table.get(key, {}), Mapping):
                raise ConfigError(f"{key} is a section (got {show(table[key])})")
        for name, given in table.get("arms", {}).items():
            if not isinstance(given, Mapping):
                raise ConfigError(f'arms.{name} is a section: write [arms.{name}] and below it "filter.name" = "dgf"')
            changes = dotted_keys({key: value for key, value in given.items() if key != "against"})
            arms.append(Arm(name, changes, given.get("against")))
        for name, given in table.get("scale", {}).items():
            if not isinstance(given, Mapping):
                raise ConfigError(f"scale.{name} is a section: write [scale.{name}] and below it rounds = 500")
        compare = read(Compare, table.get("compare", {}), "compare")
        return cls(base, tuple(arms), compare, table.get("scale", {}))

    def at_scale(self, name: str | None) -> "Experiment":
        """This experiment with the changes of one of its scales in the base."""
        if name is None:
            return self
        if name not in self.scales:
            raise ConfigError(unknown_name("--scale", name, self.scales or ["(this config has no [scale.NAME])"]))
        return replace(self, base=override(self.base, self.scales[name]))

    def config(self, changes: Mapping[str, Any], arm: Arm | None = None, seed: int | None = None) -> Config:
        """The config of one run: the base, with these changes, then the arm's, then the seed of a comparison."""
        table = override(override(self.base, changes), arm.changes if arm else {})
        try:
            return Config.from_table(table if seed is None else {**table, "seed": seed})
        except ConfigError as error:
            where = f"arms.{arm.name}: " if arm else ""
            raise ConfigError([where + problem for problem in error.problems]) from None

    def checked_arms(self) -> tuple[Arm, ...]:
        """The arms, each with the one it is tested against: the first, unless it names another."""
        if not self.arms:
            raise ConfigError("there is nothing to compare: add [arms.NAME] sections, or --arm NAME:key=value,...")
        names = [arm.name for arm in self.arms]
        for arm in self.arms:
            if not is_folder_name(arm.name):
                raise ConfigError(f"the name of an arm must be {FOLDER_NAME} (got {show(arm.name)})")
            if taken := {"name", "seed"} & arm.changes.keys():
                raise ConfigError(f"arms.{arm.name}: {min(taken)} is the comparison's own, an arm cannot change it")
            if names.count(arm.name) > 1:
                raise ConfigError(f"there are two arms of the name {show(arm.name)}")
            if arm.against is not None and arm.against not in names:
                known = ", ".join(names)
                raise ConfigError(f"arms.{arm.name}: against must be one of {known} (got {show(arm.against)})")
        return tuple(Arm(arm.name, arm.changes, arm.against or names[0]) for arm in self.arms)


def shipped_names() -> list[str]:
    """The experiments that come with filfl."""
    folder = resources.files("filfl") / "experiments"
    return sorted(entry.name[:-5] for entry in folder.iterdir() if entry.name.endswith(".toml"))


def override(table: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The table after changes like {"filter.name": "rgf", "rounds": 10}.

    A section whose plug-in changes keeps the options that the new one knows and drops those of the old one.
    """
    changes = dotted_keys(changes)
    result: dict[str, Any] = {k: dict(v) if isinstance(v, Mapping) else v for k, v in table.items()}
    for key, value in sorted(changes.items(), key=lambda change: not change[0].endswith(".name")):
        section, _, option = key.rpartition(".")
        if not section:
            result[key] = value
            continue
        options = result.setdefault(section, {})
        if not isinstance(options, dict):
            raise ConfigError(f"{section} is a section, so {key} cannot be set")
        if option == "name" and section in REGISTRIES:
            _drop_options_of_the_old(section, options, value)
        options[option] = value
        if value == UNSET:
            del options[option]
        if key in INSTEAD and INSTEAD[key] not in changes:
            options.pop(INSTEAD[key].rpartition(".")[2], None)
    return result


def parse_changes(pairs: Sequence[str]) -> dict[str, Any]:
    """{"filter.name": "dgf", "selection.k": 5} out of ["filter.name=dgf", "selection.k=5"]."""
    changes = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key.strip() or "\n" in pair:
            raise ConfigError(f"write key=value, for example selection.k=5 (got {show(pair)})")
        try:
            changes[key.strip()] = tomllib.loads(f"value = {text.strip()}")["value"]
        except (ValueError, RecursionError):
            changes[key.strip()] = text.strip()
    return changes


def parse_arm(text: str) -> Arm:
    """An arm out of NAME:key=value,key=value."""
    name, _, pairs = text.partition(":")
    if not name.strip():
        raise ConfigError(f"write --arm NAME:key=value,... (got {show(text)})")
    # A comma inside brackets belongs to a list, as in model.hidden=[64,32].
    changes = parse_changes([pair for pair in re.split(r",(?![^\[]*\])", pairs) if pair.strip()])
    against = changes.pop("against", None)
    return Arm(name.strip(), changes, against)


def dotted_keys(table: Mapping[str, Any]) -> dict[str, Any]:
    """{"filter": {"name": "dgf"}} and {"filter.name": "dgf"} both as the latter."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            flat |= {f"{key}.{option}": inner for option, inner in value.items()}
        else:
            flat[key] = value
    return flat


def _drop_options_of_the_old(section: str, options: dict[str, Any], new: Any) -> None:
    registry, old = REGISTRIES[section], options.get("name", default_name(section))
    if isinstance(new, str) and new in registry and isinstance(old, str) and old in registry:
        for option in option_names(section, old) - option_names(section, new):
            options.pop(option, None)
