"""`filfl list`: the plug-ins, and the options of one of them."""

import inspect
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table

from filfl.commands.terminal import console, print_json
from filfl.config.config import GENERAL, Config
from filfl.config.plugins import KINDS, plugin_class
from filfl.config.reference import Option, options, summary
from filfl.config.schema import collecting, unknown_name
from filfl.config.sections import FilterOptions
from filfl.data.partition import PARTITIONS
from filfl.errors import ConfigError
from filfl.filtering.schedule import WHEN

WIDTH = 80
VALUES: dict[str, Mapping[str, Callable[..., Any]]] = {"filter.when": WHEN, "data.partition": PARTITIONS}
"""Options whose values have a description each."""


def list_command(name: str | None = None, as_json: bool = False) -> None:
    if as_json and name is None:
        tables: dict[str, Mapping[str, Callable[..., Any]]] = {
            **{section: kind.registry for section, kind in KINDS.items()},
            **VALUES,
        }
        print_json({key: {each: summary(rows[each]) for each in rows} for key, rows in tables.items()})
    elif as_json and name is not None:
        print_json([_entry(*found) for found in _found(name)])
    elif name is None:
        for section in KINDS:
            _print_table(section, KINDS[section].registry)
        for key, functions in VALUES.items():
            _print_table(key, functions)
        console.print("filfl list NAME shows the options of one of them.", highlight=False)
    else:
        for title, text, described in _found(name):
            _print_options(title, text, described)


def _entry(title: str, text: str, described: list[Option]) -> dict[str, Any]:
    return {"title": title, "description": text, "options": [asdict(option) for option in described]}


def _print_table(title: str, rows: Mapping[str, Callable[..., Any]]) -> None:
    """Names, each with the first line of its documentation."""
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE, show_header=False)
    table.add_column(min_width=24, overflow="fold")
    table.add_column(overflow="fold")
    for name, documented in rows.items():
        table.add_row(name, escape(summary(documented)))
    console.print(table, highlight=False)


def _found(name: str) -> list[tuple[str, str, list[Option]]]:
    """Every section and plug-in of this name: title, documentation, options."""
    found: list[tuple[str, str, list[Option]]] = []
    if ":" in name:  # an import path, which belongs to one section
        problems: list[str] = []
        for section in KINDS:
            with collecting(problems):
                found.append(_plugin(section, name))
        if not found:
            raise ConfigError(problems[0])
    if name in GENERAL:
        found.append((f"[{name}]", inspect.getdoc(GENERAL[name]) or "", options(GENERAL[name], name)))
    if name in KINDS:
        cls = FilterOptions if name == "filter" else KINDS[name].base
        names = ", ".join(KINDS[name].registry)
        found.append((f"[{name}]", f"{inspect.getdoc(cls)}\n\n{name}.name: {names}", options(cls, name)))
    found += [_plugin(section, name) for section in KINDS if name in KINDS[section].registry]
    if name == "run":
        found.append(("outside any section", "The keys outside any section.", options(Config, "")))
    if not found:
        known = [*KINDS, *GENERAL, *dict.fromkeys(each for kind in KINDS.values() for each in kind.registry)]
        raise ConfigError(unknown_name("the name", name, known))
    return found


def _plugin(section: str, name: str) -> tuple[str, str, list[Option]]:
    cls = plugin_class(section, name)
    return f'{section}.name = "{name}"', inspect.getdoc(cls) or "", options(cls, section)


def _print_options(title: str, text: str, described: list[Option]) -> None:
    console.print(title, style="bold", markup=False, highlight=False)
    lines = [_filled(part, 2) for part in text.split("\n\n")]
    for option in described:
        default = "required" if option.default == "required" else f"default {option.default}"
        values, description = _filled(f"{option.values}; {default}", 6), _filled(option.description, 6)
        lines.append(f"{option.key}\n" + textwrap.indent(f"{values}\n{description}".rstrip(), "    "))
    if not described:
        lines.append("It has no options.")
    console.print(textwrap.indent("\n\n".join(lines), "  ") + "\n", markup=False, highlight=False, soft_wrap=True)


def _filled(text: str, indent: int) -> str:
    return textwrap.fill(" ".join(text.split()), WIDTH - indent, break_on_hyphens=False)
