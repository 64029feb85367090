"""An experiment file: the config of a run, and the arms of a comparison, which change some of its keys."""

import difflib
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from itertools import product
from pathlib import Path
from typing import Any

from filfl.config.config import Config, dotted_keys, override
from filfl.config.figure import Figure
from filfl.config.schema import FOLDER_NAME, Count, is_folder_name, read, show, unknown_name
from filfl.errors import ConfigError

SECTIONS = ("arms", "factors", "compare", "scale", "figure")
"""The sections of an experiment file that are not part of the config of a run."""
SHIPPED = resources.files("filfl") / "experiments"
"""The experiments that come with filfl."""
RUN_CONFIG = "config.toml"
"""The file with the config in the directory of a run."""
LAPTOP = "laptop"
"""The name of the scale without changes."""


@dataclass(frozen=True)
class Arm:
    """One arm of a comparison: the keys that it changes, and the arm that it is tested against."""

    name: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    against: str | None = None
    start: "Experiment | None" = None
    """The experiment whose base it changes; None is the experiment of which it is an arm."""
    levels: tuple[str, ...] = ()
    """Its level of each factor, if the arms are all combinations of factors."""
    own: Mapping[str, Any] = field(default_factory=dict)
    """Objects from Python by section, as `Config.with_own` takes them."""


@dataclass(frozen=True, kw_only=True)
class Compare:
    """How `filfl compare` runs the arms and reports on them."""

    title: str | None = None
    """The title of the table and the pictures. Unset is the name of the experiment."""
    seeds: Count = 3
    """The number of runs of every arm, with consecutive seeds from the seed of the config."""
    target: float | None = None
    """The value of the primary metric for "rounds to target", such as an accuracy of 0.7. Unset is a tenth worse than
    the best final value: nine tenths of the best accuracy."""
    at: tuple[Count, ...] = ()
    """The rounds whose primary metric the table shows. Empty is after a sixth and a half of the rounds, and at the end.
    """


@dataclass(frozen=True)
class Experiment:
    """A base table, its arms, and how to compare them."""

    base: Mapping[str, Any]
    arms: tuple[Arm, ...] = ()
    compare: Compare = Compare()
    scales: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Changes to the base by name, such as the size of the paper's runs. `arms` in one of them replaces the arms, and
    `from` names another one, whose changes come first."""
    figure: Figure | None = None
    """The figure of the paper that it reproduces."""
    own: Mapping[str, Any] = field(default_factory=dict)
    """Objects from Python by section, for all arms that do not name another plug-in."""

    @classmethod
    def load(cls, source: str | Path) -> "Experiment":
        """Read a TOML file, an experiment that comes with filfl, by its name, or the config of a run directory."""
        path, shipped = Path(source), SHIPPED / f"{source}.toml"
        try:
            file = path if path.is_file() else shipped
            if not file.is_file() and path.is_dir():
                file = _config_of_run(path)
            if not file.is_file():
                nearest = difflib.get_close_matches(str(source).removesuffix(".toml").lower(), shipped_names(), n=1)
                hint = f"; did you mean {nearest[0]}?" if nearest else ""
                known = ", ".join(shipped_names())
                raise ConfigError(f"there is no file {source} and no experiment of that name{hint} (known: {known})")
            table = tomllib.loads(file.read_text(encoding="utf-8-sig"))
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{source} is not valid TOML: {error}") from None
        except OSError as error:
            raise ConfigError(f"{source} cannot be read: {error.strerror}") from None
        return cls.from_table(table)

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> "Experiment":
        for key in SECTIONS:
            if not isinstance(table.get(key, {}), Mapping):
                raise ConfigError(f"{key} must be a section (got {show(table[key])})")
        for name, given in table.get("scale", {}).items():
            if not isinstance(given, Mapping):
                raise ConfigError(f"scale.{name} is a section; write [scale.{name}] and below it rounds = 500")
            if not isinstance(given.get("arms", {}), Mapping):
                raise ConfigError(f"scale.{name}.arms is a section; write [scale.{name}.arms.NAME]")
        base = {key: value for key, value in table.items() if key not in (*SECTIONS, "from")}
        scales = {name: _dotted_but_arms(given) for name, given in table.get("scale", {}).items()}
        if "from" in table:
            start = _shipped("from", table["from"])
            base = override(start.base, base)
            inherited = {name: {k: v for k, v in given.items() if k != "arms"} for name, given in start.scales.items()}
            scales = {name: {**inherited.get(name, {}), **scales.get(name, {})} for name in {**inherited, **scales}}
        return cls(
            base,
            (*_crossed(table.get("factors", {})), *read_arms(table.get("arms", {}))),
            read(Compare, table.get("compare", {}), "compare"),
            scales,
            read(Figure, table["figure"], "figure") if "figure" in table else None,
        )

    def at_scale(self, name: str | None) -> "Experiment":
        """This experiment with the changes of one of its scales applied to the base."""
        if name is None or name == LAPTOP:
            return self
        if name not in self.scales:
            raise ConfigError(unknown_name("--scale", name, self.scales or ["(this config has no [scale.NAME])"]))
        changes = dict(self.scales[name])
        if "from" in changes:
            start = changes.pop("from")
            known = [other for other, given in self.scales.items() if other != name and "from" not in given]
            if start not in known:
                raise ConfigError(unknown_name(f"scale.{name}.from", start, known))
            changes = {**self.scales[start], **changes}
        arms = tuple(read_arms(changes.pop("arms"))) if "arms" in changes else self.arms
        arms = tuple(replace(arm, start=arm.start and arm.start.at_scale(name)) for arm in arms)
        return replace(self, base=override(self.base, changes), arms=arms)

    def config(self, changes: Mapping[str, Any], arm: Arm | None = None) -> Config:
        """The config of one run: the base with these changes, then those of the arm."""
        base = arm.start.base if arm and arm.start else self.base
        arm_changes, arm_own = (arm.changes, arm.own) if arm else ({}, {})
        own = {section: given for section, given in self.own.items() if f"{section}.name" not in arm_changes}
        try:
            config = Config.read(override(override(base, changes), arm_changes))
            return config.with_own(**{**own, **arm_own})
        except ConfigError as error:
            where = f"arms.{arm.name}: " if arm else ""
            raise ConfigError([where + problem for problem in error.problems]) from None

    def checked_arms(self) -> tuple[Arm, ...]:
        """The arms, each with the arm that it is tested against: the first one, unless it names another."""
        if not self.arms:
            raise ConfigError(
                "there is nothing to compare; add [arms.NAME] sections, or --arm NAME:key=value,... (from Python, "
                'arms={"NAME": {"key": value}})'
            )
        names = [arm.name for arm in self.arms]
        for arm in self.arms:
            if not is_folder_name(arm.name):
                raise ConfigError(f"the name of an arm must be {FOLDER_NAME} (got {show(arm.name)})")
            if taken := {"name", "seed"} & arm.changes.keys():
                raise ConfigError(
                    f"arms.{arm.name}: an arm cannot change {min(taken)}, which all arms share; remove it"
                )
            if names.count(arm.name) > 1:
                raise ConfigError(f"two arms have the name {show(arm.name)}; rename one of them")
            if arm.against is not None and arm.against not in names:
                known = ", ".join(names)
                raise ConfigError(f"arms.{arm.name}: against must be one of {known} (got {show(arm.against)})")
        return tuple(replace(arm, against=arm.against or names[0]) for arm in self.arms)


def _config_of_run(directory: Path) -> Path:
    """The config in the directory of a run."""
    if (directory / RUN_CONFIG).is_file():
        return directory / RUN_CONFIG
    runs = sorted(directory.glob(f"*/*/{RUN_CONFIG}"))
    hint = f"; give one of its runs, such as {runs[0].parent}" if runs else ""
    raise ConfigError(f"{directory} is a folder, not a TOML file or the directory of a run{hint}")


def shipped_names() -> list[str]:
    """The names of the experiments that come with filfl."""
    return sorted(entry.name[:-5] for entry in SHIPPED.iterdir() if entry.name.endswith(".toml"))


def read_arms(table: Mapping[str, Any]) -> Iterator[Arm]:
    """The arms of a table {name: changes}. `from = "EXPERIMENT/ARM"` starts from an arm of another experiment."""
    for name, given in table.items():
        if not isinstance(given, Mapping):
            raise ConfigError(f'arms.{name} is a section; write [arms.{name}] and below it "filter.name" = "dgf"')
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
    """All combinations of the levels of the factors. The first factor changes fastest.

    Each is tested against the combination that has the first level of the first factor and is otherwise equal.
    """
    for name, levels in factors.items():
        if (
            not isinstance(levels, Mapping)
            or not levels
            or not all(isinstance(changes, Mapping) for changes in levels.values())
        ):
            raise ConfigError(
                f"factors.{name} is a section with one or more levels; write [factors.{name}] and below it "
                'dgf = { "filter.name" = "dgf" }'
            )
    if not factors:
        return
    baseline = next(iter(next(iter(factors.values()))))
    for combination in product(*(levels.items() for levels in reversed(list(factors.values())))):
        names = tuple(level for level, _ in reversed(combination))
        changes = {key: value for _, given in combination for key, value in dotted_keys(given).items()}
        yield Arm("-".join(names), changes, "-".join([baseline, *names[1:]]), levels=names)


def _shipped(key: str, name: object) -> Experiment:
    """The experiment that `from` names, which must be one that comes with filfl."""
    if not isinstance(name, str) or name not in shipped_names():
        raise ConfigError(unknown_name(key, name, shipped_names()))
    # Not `load`: a file of that name in the current folder must not replace the one that comes with filfl.
    return Experiment.from_table(tomllib.loads((SHIPPED / f"{name}.toml").read_text(encoding="utf-8")))


def _dotted_but_arms(scale: Mapping[str, Any]) -> dict[str, Any]:
    arms = {"arms": scale["arms"]} if "arms" in scale else {}
    return dotted_keys({key: value for key, value in scale.items() if key != "arms"}) | arms


def parse_changes(pairs: Sequence[str]) -> dict[str, Any]:
    """{"filter.name": "dgf", "selection.k": 5} from ["filter.name=dgf", "selection.k=5"]."""
    changes = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key.strip() or "\n" in pair:
            raise ConfigError(f"a change must be key=value, for example selection.k=5 (got {show(pair)})")
        try:
            changes[key.strip()] = tomllib.loads(f"value = {text.strip()}")["value"]
        except (ValueError, RecursionError):
            changes[key.strip()] = text.strip()
    return changes


def parse_arm(text: str) -> Arm:
    """An arm from NAME:key=value,key=value."""
    name, _, pairs = text.partition(":")
    if not name.strip():
        raise ConfigError(f"--arm must be NAME:key=value,... (got {show(text)})")
    # A comma inside brackets is part of a list or a table, as in model.hidden=[64,32].
    changes = parse_changes([pair for pair in re.split(r",(?![^\[]*\])(?![^{]*\})", pairs) if pair.strip()])
    against = changes.pop("against", None)
    return Arm(name.strip(), changes, against)
