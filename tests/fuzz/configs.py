"""Configs: hostile values for every option, as TOML and as --set. A config that is accepted can be written and read."""

import math
import random
import tomllib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import tomli_w

from filfl.config.config import GENERAL, Config
from filfl.config.experiment import Experiment, parse_changes
from filfl.config.plugins import KINDS
from filfl.config.schema import options_of
from filfl.config.sections import FilterOptions
from filfl.errors import ConfigError

from .campaign import Part, Wrong, check_sentence

CORPUS = Path(__file__).parent / "corpus" / "configs"
VALUES: tuple[Any, ...] = (
    *(0, 1, -1, 2, 3, 2**31, 2**63 - 1, 2**63, 10**30, int("9" * 4300), -(10**400)),
    *(0.0, 1.0, -1.0, 0.5, 1e-308, 1e308, 300.0, math.inf, -math.inf, math.nan),
    *(
        "",
        "x",
        "none",
        "unset",
        "\x1b[31m",
        "a\nb",
        "é" * 300,
        "../..",
        "\x00",
        "os:system",
        "filfl:simulate",
        "~nobody/x",
    ),
    *(True, False, [], [1], ["a", 1], [[1]], {}, {"a": 1}, {"name": "dgf"}, [10**400], {"a": {"b": {"c": []}}}),
)
EXTRAS = (
    "arms",
    "factors",
    "scale",
    "compare",
    "figure",
    "from",
    "arms.a",
    "factors.x",
    "scale.x",
    "name",
    "seed",
    "rounds",
)
EXTRA_KEYS = (
    "arms",
    "against",
    "from",
    "filter.name",
    "filter",
    "rounds",
    "seed",
    "title",
    "seeds",
    "target",
    "at",
    "paper",
)


def _options() -> list[str]:
    keys = [f"{section}.{option}" for section, cls in GENERAL.items() for option in options_of(cls)]
    for section, kind in KINDS.items():
        keys.append(f"{section}.name")
        for cls in kind.registry.values():
            keys += [f"{section}.{option}" for option in options_of(cls)]
    return sorted({*keys, *(f"filter.{option}" for option in options_of(FilterOptions)), *options_of(Config)})


OPTIONS = _options()
NAMES = {section: list(kind.registry) for section, kind in KINDS.items()}


class Configs(Part):
    name = "configs"

    def case(self, rng: random.Random) -> None:
        if rng.random() < 0.3:
            keys = rng.choices(OPTIONS, k=rng.randint(1, 3))
            pairs = [f"{key}={rng.choice((rng.choice(VALUES), '{', '[1,', '=', '9' * 5000))}" for key in keys]
            _check(lambda: Experiment.load("demo").config(parse_changes(pairs)))
            return
        table: dict[str, Any] = {}
        for key in rng.choices(OPTIONS, k=rng.randint(1, 4)):
            section, _, option = key.rpartition(".")
            inner = table.setdefault(section, {}) if section else table
            if isinstance(inner, dict):
                inner[option] = rng.choice(NAMES[section]) if option == "name" and section else rng.choice(VALUES)
        if rng.random() < 0.4:
            path, value = (
                rng.choice(EXTRAS).split("."),
                rng.choice((*VALUES, {rng.choice(EXTRA_KEYS): rng.choice(VALUES)})),
            )
            inner = table
            for part in path[:-1]:
                inner = inner.setdefault(part, {}) if isinstance(inner.get(part, {}), dict) else {}
            inner[path[-1]] = value
        self.read(_toml(table))

    def read(self, text: str) -> None:
        """Every way in which a file is read."""
        path = self.folder / "config.toml"
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        experiment = _check(lambda: Experiment.load(path))
        if experiment is None:
            return
        for scale in (None, *experiment.scales):
            scaled = _check(partial(experiment.at_scale, scale))
            if scaled is not None:
                _check(partial(scaled.config, {}))
                for arm in (_check(scaled.checked_arms) or ())[:5]:
                    _check(partial(scaled.config, {}, arm))

    def corpus(self) -> Mapping[str, Callable[[], None]]:
        return {path.stem: partial(self._known, path) for path in sorted(CORPUS.glob("*.toml"))}

    def _known(self, path: Path) -> None:
        """A config that must be refused by the sentence in its first line, after the #."""
        said: list[str] = []
        text = path.read_text(encoding="utf-8")
        self.folder.joinpath("config.toml").write_text(text, encoding="utf-8")
        try:
            experiment = Experiment.load(self.folder / "config.toml")
            for scale in (None, *experiment.scales):
                scaled = experiment.at_scale(scale)
                scaled.config({})
                for arm in scaled.checked_arms() if scaled.arms else ():
                    scaled.config({}, arm)
        except ConfigError as error:
            said.append(str(error))
        expected = text.splitlines()[0].removeprefix("# ")
        if not any(expected in each for each in said):
            raise Wrong(f"{path.name} must be refused with {expected!r} (got {said})")


def _check(call: Callable[[], Any]) -> Any:
    """The result, or None after a sentence. An accepted config is the same after it was written and read."""
    try:
        result = call()
    except ConfigError as error:
        for problem in error.problems:
            check_sentence(problem)
        return None
    if isinstance(result, Config):
        table = tomllib.loads(tomli_w.dumps(result.table()))
        if Config.from_table(table) != result:
            raise Wrong(f"a config that is not the same after it was written: {result!r}")
    return result


def _toml(table: Mapping[str, Any]) -> str:
    try:
        return tomli_w.dumps(table)
    except (ValueError, TypeError):
        return f"seed = {table!r}"
