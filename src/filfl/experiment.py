"""An experiment file: the config of one run, and the arms that change something in it."""

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from itertools import product
from pathlib import Path
from typing import Any

from filfl.config import REGISTRIES, Config, default_name, option_names
from filfl.errors import ConfigError
from filfl.figure import Figure
from filfl.options import FOLDER_NAME, Count, Fraction, is_folder_name, read, show, unknown_name

INSTEAD = {"training.steps": "training.epochs", "training.epochs": "training.steps"}
"""Setting the one unsets the other."""
UNSET = "unset"
"""The value that takes an option of the base away, as in filter.size = "unset"."""
SECTIONS = ("arms", "factors", "compare", "scale", "figure")
"""The sections of an experiment file that are no part of a run's config."""
LAPTOP = "laptop"
"""The scale of a file as it is."""


@dataclass(frozen=True)
class Arm:
    """One column of a comparison: what it changes, and the arm that it is tested against."""

    name: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    against: str | None = None
    start: "Experiment | None" = None
    """The experiment whose base it changes; unset: the one that it stands in."""
    levels: tuple[str, ...] = ()
    """What it takes of each factor, where the arms are all combinations of factors."""


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
    """Changes to the base by name, such as the size of the paper's own runs; `arms` in one stands in for the arms."""
    figure: Figure | None = None
    """What it reproduces of the paper."""

    @classmethod
    def load(cls, source: str | Path) -> "Experiment":
        """Read a TOML file, or one of the experiments that come with filfl, by name."""
        path = Path(source)
        shipped = resources.files("filfl") / "experiments" / f"{source}.toml"
        try:
            if path.is_file():
                text = path.read_text(encoding="utf-8-sig")
            elif shipped.is_file():
                text = shipped.read_text(encoding="utf-8")
            elif path.is_dir():
                raise ConfigError(f"{source} is a folder, not a TOML file")
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
        for key in SECTIONS:
            if not isinstance(table.get(key, {}), Mapping):
                raise ConfigError(f"{key} is a section (got {show(table[key])})")
        for name, given in table.get("scale", {}).items():
            if not isinstance(given, Mapping):
                raise ConfigError(f"scale.{name} is a section: write [scale.{name}] and below it rounds = 500")
        base = {key: value for key, value in table.items() if key not in (*SECTIONS, "from")}
        scales = {name: _dotted_but_arms(given) for name, given in table.get("scale", {}).items()}
        if "from" in table:
            start = _shipped("from", table["from"])
            base = override(start.base, base)
            inherited = {name: {k: v for k, v in given.items() if k != "arms"} for name, given in start.scales.items()}
            scales = {name: {**inherited.get(name, {}), **scales.get(name, {})} for name in {**inherited, **scales}}
        return cls(
            base,
            (*_crossed(table.get("factors", {})), *_read_arms(table.get("arms", {}))),
            read(Compare, table.get("compare", {}), "compare"),
            scales,
            read(Figure, table["figure"], "figure") if "figure" in table else None,
        )

    def at_scale(self, name: str | None) -> "Experiment":
        """This experiment with the changes of one of its scales in the base."""
        if name is None or name == LAPTOP:
            return self
        if name not in self.scales:
            raise ConfigError(unknown_name("--scale", name, self.scales or ["(this config has no [scale.NAME])"]))
        changes = dict(self.scales[name])
        arms = tuple(_read_arms(changes.pop("arms"))) if "arms" in changes else self.arms
        arms = tuple(replace(arm, start=arm.start and arm.start.at_scale(name)) for arm in arms)
        return replace(self, base=override(self.base, changes), arms=arms)

    def config(self, changes: Mapping[str, Any], arm: Arm | None = None, seed: int | None = None) -> Config:
        """The config of one run: the base, with these changes, then the arm's, then the seed of a comparison."""
        base = arm.start.base if arm and arm.start else self.base
        table = override(override(base, changes), arm.changes if arm else {})
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
        return tuple(replace(arm, against=arm.against or names[0]) for arm in self.arms)


def shipped_names() -> list[str]:
    """The experiments that come with filfl."""
    folder = resources.files("filfl") / "experiments"
    return sorted(entry.name[:-5] for entry in folder.iterdir() if entry.name.endswith(".toml"))


def _read_arms(table: Mapping[str, Any]) -> Iterator[Arm]:
    """The arms of a table {name: changes}; `from` = "EXPERIMENT/ARM" starts from an arm of another experiment."""
    for name, given in table.items():
        if not isinstance(given, Mapping):
            raise ConfigError(f'arms.{name} is a section: write [arms.{name}] and below it "filter.name" = "dgf"')
        changes = dotted_keys({key: value for key, value in given.items() if key not in ("against", "from")})
        if "from" not in given:
            yield Arm(name, changes, given.get("against"))
            continue
        source, _, wanted = str(given["from"]).rpartition("/")
        start = _shipped(f"arms.{name}.from", source)
        found = {arm.name: arm for arm in start.arms}
        if wanted not in found:
            raise ConfigError(unknown_name(f"arms.{name}.from: the arm of {source}", wanted, found))
        yield Arm(name, {**found[wanted].changes, **changes}, given.get("against"), start)


def _crossed(factors: Mapping[str, Any]) -> Iterator[Arm]:
    """All combinations of the factors' levels, the first factor changing fastest.

    Each is tested against the one that differs from it in having the first level of the first factor.
    """
    for name, levels in factors.items():
        if not isinstance(levels, Mapping) or not all(isinstance(changes, Mapping) for changes in levels.values()):
            raise ConfigError(
                f'factors.{name} is a section: write [factors.{name}] and below it dgf = {{ "filter.name" = "dgf" }}'
            )
    if not factors:
        return
    baseline = next(iter(next(iter(factors.values()))))
    for combination in product(*(levels.items() for levels in reversed(list(factors.values())))):
        names = tuple(level for level, _ in reversed(combination))
        changes: dict[str, Any] = {}
        for _, given in combination:
            changes |= dotted_keys(given)
        yield Arm("-".join(names), changes, "-".join([baseline, *names[1:]]), levels=names)


def _shipped(key: str, name: object) -> Experiment:
    """What `from` names: one of the experiments that come with filfl."""
    if not isinstance(name, str) or name not in shipped_names():
        raise ConfigError(unknown_name(key, name, shipped_names()))
    # Not `load`: a file of that name in the current folder must not change what comes with filfl.
    text = (resources.files("filfl") / "experiments" / f"{name}.toml").read_text(encoding="utf-8")
    return Experiment.from_table(tomllib.loads(text))


def _dotted_but_arms(scale: Mapping[str, Any]) -> dict[str, Any]:
    arms = {"arms": scale["arms"]} if "arms" in scale else {}
    return dotted_keys({key: value for key, value in scale.items() if key != "arms"}) | arms


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
