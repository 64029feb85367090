"""`filfl list`: what can be plugged in."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table

from filfl.commands.terminal import console
from filfl.config import REGISTRIES
from filfl.data.partition import PARTITIONS
from filfl.filtering import FILTERS
from filfl.filtering.when import WHEN


def list_command() -> None:
    filters: dict[str, Any] = {"none": "No filtering: plain federated learning.", **FILTERS}
    filters["own"] = (
        "Your own function (clients, reward, rng) -> Filtering, given from Python: simulate(..., filter=f)."
    )
    kinds: dict[str, Mapping[str, Any]] = {**REGISTRIES, "filter": filters, "filter.when": WHEN}
    kinds["data.partition"] = PARTITIONS
    for kind, plugins in kinds.items():
        table = Table(title=kind, title_justify="left", title_style="bold", box=box.SIMPLE, show_header=False)
        table.add_column(min_width=24)
        table.add_column()
        for name, plugin in plugins.items():
            table.add_row(name, escape(_first_line(plugin)))
        console.print(table, highlight=False)


def _first_line(plugin: str | Callable[..., Any]) -> str:
    return plugin if isinstance(plugin, str) else (inspect.getdoc(plugin) or "").splitlines()[0]
