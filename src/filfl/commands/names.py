"""Writes names.json, from which the shell completes the keys of a config: python -m filfl.commands.names FILE."""

import json
import sys
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from filfl.config.config import GENERAL, Config
from filfl.config.plugins import KINDS
from filfl.config.schema import dotted, options_of
from filfl.config.sections import FilterOptions


def names() -> dict[str, list[str]]:
    """Every key of a config, with its values where it has a fixed set of them."""
    found = _keys(Config, "")
    for section, kind in KINDS.items():
        found[f"{section}.name"] = list(kind.registry)
        for cls in (FilterOptions if section == "filter" else kind.base, *kind.registry.values()):
            found |= _keys(cls, section)
    for section, cls in GENERAL.items():
        found |= _keys(cls, section)
    return found


def _keys(cls: type[Any], section: str) -> dict[str, list[str]]:
    hints = get_type_hints(cls, include_extras=True)
    return {dotted(section, name): _values(hints[name]) for name in options_of(cls)}


def _values(hint: Any) -> list[str]:
    if get_origin(hint) is Literal:
        return [str(value) for value in get_args(hint)]
    if hint is bool:
        return ["true", "false"]
    return [value for inner in get_args(hint) for value in _values(inner)]


def render() -> str:
    return json.dumps(names(), indent=0) + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(render(), encoding="utf-8")
