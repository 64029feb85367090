"""Markdown pages from Jinja templates."""

import textwrap
from pathlib import Path
from typing import Any

import jinja2

from filfl.report.formatting import markdown_rows


def markdown_page(template: Path, **values: Any) -> str:
    """A Markdown page from a Jinja template, which can use the filters `wrap`, `bullet` and `table`."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(template.parent),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "wrap": wrap,
        "bullet": lambda text: wrap(f"- {text}", indent="  "),
        "table": lambda rows, headings, align="---": "\n".join(markdown_rows(headings, rows, align)),
    }
    return environment.get_template(template.name).render(values)


def wrap(text: str, indent: str = "") -> str:
    """A paragraph in lines of at most 120 characters."""
    return textwrap.fill(
        " ".join(text.split()), 120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
