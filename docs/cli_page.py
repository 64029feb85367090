"""The page docs/cli.md, made from the command line itself: `python docs/cli_page.py` writes it."""

import textwrap
from pathlib import Path

import click
from typer.main import get_command

from filfl.cli import app

PAGE = Path(__file__).with_name("cli.md")
INTRODUCTION = """\
# Command line

All commands and options. `make docs` makes this page from the code; `filfl COMMAND --help` shows the same.
[Run, compare, resume and verify](command-line.md) has examples, and the [config reference](config.md) the keys that
`--set` changes. In the search of the site, write an option without its dashes: `resume` for `--resume`.
"""


def render() -> str:
    root = get_command(app)
    assert isinstance(root, click.Group)
    context = click.Context(root, info_name="filfl")
    parts = [INTRODUCTION, "| command | |\n|---|---|"]
    parts[-1] += "".join(f"\n| [`{name}`](#filfl-{name}) | {command.help} |" for name, command in root.commands.items())
    parts[-1] += "\n"
    parts += [described("filfl", root, context)]
    for name, command in root.commands.items():
        parts.append(described(f"filfl {name}", command, click.Context(command, context, info_name=name)))
    return "\n".join(parts)


def described(title: str, command: click.Command, context: click.Context) -> str:
    """A command: its help, its usage, and a table of its arguments and options."""
    usage = " ".join([title, *command.collect_usage_pieces(context)])
    help_ = "\n".join(textwrap.wrap(command.help or "", 120, break_on_hyphens=False))
    rows = [record for parameter in command.get_params(context) if (record := parameter.get_help_record(context))]
    table = "".join(f"| `{names}` | {cell(text)} |\n" for names, text in rows)
    return f"## {title}\n\n{help_}\n\n```text\n{usage}\n```\n\n| argument or option | meaning |\n|---|---|\n{table}"


def cell(text: str) -> str:
    """The help of an option in one cell of a table."""
    return (
        " ".join(text.split())
        .replace("\\[", "[")
        .replace("|", "\\|")
        .replace("[x>=", "[at least ")
        .replace("[x<=", "[at most ")
    )


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
