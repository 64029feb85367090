"""`filfl report`: runs and comparisons as one HTML file."""

from collections.abc import Sequence
from pathlib import Path

from filfl.commands.terminal import say
from filfl.errors import RunError
from filfl.report.html.collect import collect
from filfl.report.html.render import render, report_data
from filfl.runs.files import write_atomic


def report_command(directories: Sequence[Path], out: Path) -> None:
    sections = collect(directories)
    if not sections:
        raise RunError(
            f"no run found in {', '.join(map(str, directories))}; give the directory of a run (it has a config.toml), "
            "of a comparison (it has a comparison.toml), or a folder of them"
        )
    data = report_data(sections)
    page = render(data).encode("utf-8")
    write_atomic(out, page)
    for section in data["sections"]:
        say(section["title"], style="bold")
        say(f"  {section['headline']['sentence']}")
        for problem in section["problems"]:
            say(f"  {problem}", style="yellow")
    say(f"Open the report in a browser: {out} ({len(page) / 1e6:.1f} MB)")
