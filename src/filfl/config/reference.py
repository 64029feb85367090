"""The reference of all options, from the dataclasses that define them.

`python -m filfl.config.reference docs/config.md` writes the page. `filfl list NAME` shows the same descriptions.
"""

import ast
import dataclasses
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, get_type_hints

from filfl.config.config import GENERAL, Config
from filfl.config.experiment import Compare
from filfl.config.figure import Figure
from filfl.config.plugins import KINDS
from filfl.config.schema import allowed, dotted, options_of, show
from filfl.config.sections import FilterOptions

WIDTH = 120
INTRODUCTION = """\
# Config reference

All options of a run. This page is made from the code by `make reference`; `filfl list NAME` shows the same for one
section or plug-in.

An option has the same name everywhere: in a TOML file (`[filter]`, then `period = 5`), on the command line
(`--set filter.period=5`), in an arm (`"filter.period" = 5`) and in Python
(`filfl.simulate({"filter.period": 5})`). The value `"unset"` removes an option that a base config sets.

A section with a `name` is a plug-in: the name selects it, and the other keys of the section are its options. A name may
also be the import path of your own class, such as `filter.name = "mypackage.filters:MyFilter"`: see
[extending.md](extending.md).
"""


@dataclass(frozen=True)
class Option:
    """One option of a section or plug-in, described for a reader."""

    key: str
    values: str
    default: str
    """How the default is written in TOML; "unset" or "required"."""
    description: str


def options(cls: type[Any], section: str) -> list[Option]:
    """The options of a dataclass, in the order of its fields."""
    hints, texts = get_type_hints(cls, include_extras=True), descriptions(cls)
    return [
        Option(dotted(section, name), allowed(hints[name]), _default(field), texts.get(name, ""))
        for name, field in options_of(cls).items()
    ]


def descriptions(cls: type[Any]) -> dict[str, str]:
    """The string below each field of a class and of its base classes."""
    texts: dict[str, str] = {}
    for each in reversed(cls.__mro__):
        if "__dataclass_fields__" not in vars(each):
            continue
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(each))).body
        body = definition.body if isinstance(definition, ast.ClassDef) else []
        for pair in pairwise(body):
            match pair:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=text)):
                    texts[name] = " ".join(str(text).split())
    return texts


def summary(documented: Callable[..., Any]) -> str:
    """The first line of the documentation of a class or function."""
    return (inspect.getdoc(documented) or "").partition("\n")[0]


def _default(field: "dataclasses.Field[Any]") -> str:
    if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
        return "required"
    value = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    return "unset" if value is None else show(list(value) if isinstance(value, tuple) else value)


def render() -> str:
    """The page docs/config.md."""
    lines = [INTRODUCTION, "## Outside any section", "", *_items(options(Config, ""))]
    for section, kind in KINDS.items():
        shared = FilterOptions if section == "filter" else kind.base
        lines += ["", f"## [{section}]", "", *_wrapped(inspect.getdoc(shared) or ""), ""]
        lines += [f"Default: `{section}.name = {show(kind.default)}`.", ""]
        if common := options(shared, section):
            lines += [f"With every `{section}.name`:", "", *_items(common), ""]
        for name, cls in kind.registry.items():
            lines += [f"### {section}.name = {show(name)}", *_described(cls, section, common), ""]
    for section, cls in GENERAL.items():
        lines += ["", f"## [{section}]", *_described(cls, section)]
    lines += ["", "## Sections of an experiment file", ""]
    lines += _wrapped(
        "An experiment file is a config with arms: `[arms.NAME]` has the keys that an arm changes, `[factors.NAME]` "
        "makes the arms from all combinations of levels, `[scale.NAME]` has the keys that `--scale NAME` changes."
    )
    for section, cls in {"compare": Compare, "figure": Figure}.items():
        lines += ["", f"### [{section}]", *_described(cls, section)]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n"


def _described(cls: type[Any], section: str, common: list[Option] | None = None) -> list[str]:
    """The documentation of a class and its options, without those that all plug-ins of the section have."""
    own = [option for option in options(cls, section) if option not in (common or [])]
    return ["", *_wrapped(inspect.getdoc(cls) or ""), "", *_items(own)]


def _items(described: list[Option]) -> Iterator[str]:
    for option in described:
        default = "required" if option.default == "required" else f"default {option.default}"
        yield from textwrap.wrap(
            f"- `{option.key}`: {option.values}; {default}. {option.description}",
            WIDTH,
            subsequent_indent="  ",
            break_long_words=False,
            break_on_hyphens=False,
        )


def _wrapped(text: str) -> list[str]:
    paragraphs = [textwrap.fill(" ".join(part.split()), WIDTH, break_on_hyphens=False) for part in text.split("\n\n")]
    return "\n\n".join(paragraphs).splitlines()


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(render(), encoding="utf-8")
