"""The tutorials: every notebook runs, and is stored with outputs of the same kinds."""

from pathlib import Path
from typing import Any

import nbformat
import pytest
from execute_tutorials import TUTORIALS, execute, joined

NAMES = ("first-run", "your-own-data", "which-clients-hurt", "reproduce-a-figure", "on-flower")


def kinds(notebook: nbformat.NotebookNode) -> list[list[list[str]]]:
    """Of every output of every cell, what it can be shown as."""
    outputs = [joined(cell.get("outputs", [])) for cell in notebook.cells]
    return [[sorted(output.get("data", [output.get("name", "error")])) for output in each] for each in outputs]


def texts(notebook: nbformat.NotebookNode) -> str:
    def plain(output: Any) -> str:
        return str(output.get("text", "")) + str(output.get("data", {}).get("text/plain", ""))

    return "\n".join(plain(output) for cell in notebook.cells for output in cell.get("outputs", []))


def test_every_tutorial_is_tested() -> None:
    assert {path.stem for path in TUTORIALS.glob("*.ipynb")} == {*NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_tutorial_runs(name: str, tmp_path: Path) -> None:
    stored = nbformat.read(TUTORIALS / f"{name}.ipynb", as_version=4)
    executed = execute(TUTORIALS / f"{name}.ipynb", tmp_path)
    assert kinds(executed) == kinds(stored), "run python docs/execute_tutorials.py"
    for notebook in (executed, stored):
        assert "Warning" not in texts(notebook) and "Error" not in texts(notebook)
    assert not any(folder in texts(stored) for folder in ("/tmp", "/home", "/root"))
    CHECKS.get(name, lambda _: None)(executed)


def shows_bars_tables_and_plots(notebook: nbformat.NotebookNode) -> None:
    shown = kinds(notebook)
    assert sum(any("text/html" in kind for kind in cell) for cell in shown) >= 4
    assert sum(any("image/png" in kind for kind in cell) for cell in shown) >= 2
    assert "10/10" in texts(notebook), "the bar of a run of ten rounds is complete"
    assert texts(notebook).count("run (2 seeds)\n") == 1, "the comparison, once"


def finds_the_bad_sites(notebook: nbformat.NotebookNode) -> None:
    assert f"{[f'site-{k:02}' for k in range(8)]}" in texts(notebook).replace(",\n ", ", ")


CHECKS = {"first-run": shows_bars_tables_and_plots, "which-clients-hurt": finds_the_bad_sites}
