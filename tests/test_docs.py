"""The documentation: its Python examples run, its links resolve, and its commands and numbers are up to date."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import cli_page
import pytest
from tests.documentation import blocks
from typer.main import get_command

import filfl
import filter_page
from filfl.cli import app
from filfl.comparison.figures import paper_names, total_minutes
from filfl.data import cifar10, femnist, shakespeare

ROOT = Path(__file__).parent.parent
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "examples").glob("*/README.md")),
]


RUN = [page for page in PAGES if page.parent in (ROOT, ROOT / "docs") and blocks(page, "python", "bash")]


@pytest.mark.parametrize("page", RUN, ids=lambda page: str(page.relative_to(ROOT)))
def test_examples_and_commands_run(page: Path, tmp_path: Path) -> None:
    """`tests/documentation.py` says which commands run with smaller settings, and which do not run."""
    environment = {name: value for name, value in os.environ.items() if name != "FILFL_DATA"}
    environment |= {"MPLBACKEND": "Agg", "NO_COLOR": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), environment.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "tests.documentation", str(page.relative_to(ROOT))]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    for _, code in blocks(page, "python"):
        for promised in re.findall(r"print\(.*?\)  +# (\(.*\))", code):
            assert promised in done.stdout


def test_commands_in_the_examples_exist() -> None:
    known = get_command(app).commands
    for page in (ROOT / "examples").glob("*/README.md"):
        for line in "\n".join(code for _, code in blocks(page, "bash")).splitlines():
            words = line.split("#")[0].split()
            if words and words[0] == "filfl":
                known[words[1]].make_context(words[1], words[2:])


def links(page: Path) -> list[tuple[Path, str]]:
    """The local targets of a page, with their anchors. A folder stands for its README, as on GitHub."""
    targets = []
    for target, anchor in re.findall(r"\]\((?!http)([^)#]*)(?:#([^)]+))?\)", page.read_text(encoding="utf-8")):
        path = (page.parent / target).resolve() if target else page
        readme = path / "README.md"
        targets.append((readme if readme.exists() else path, anchor))
    return targets


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_resolve(page: Path) -> None:
    for target, anchor in links(page):
        assert target.exists(), target
        assert not anchor or anchor in anchors(target), f"{target}#{anchor}"


def test_every_page_is_reachable_from_the_readme() -> None:
    reached, new = set(), {ROOT / "README.md"}
    while new:
        reached |= new
        new = {target for page in new for target, _ in links(page) if target in PAGES} - reached
    assert reached == set(PAGES)


def rows(page: Path) -> set[str]:
    """The rows of a page's tables that have a number with decimals."""
    return set(re.findall(r"^\|.*\d\.\d.*\|$", page.read_text(encoding="utf-8"), re.MULTILINE))


@pytest.mark.parametrize("name", ["when-not-to-filter.md", "filtering-set.md"])
def test_numbers_are_those_of_the_page_that_they_come_from(name: str) -> None:
    copied = rows(ROOT / "docs" / name)
    assert len(copied) > 3
    assert copied <= rows(ROOT / "docs" / "values.md") | rows(ROOT / "docs" / "results.md") | rows(
        ROOT / "docs" / "flower.md"
    )


def test_readme_has_numbers_of_the_whole_table() -> None:
    cells = {
        cell for row in rows(ROOT / "docs" / "filtering.md") for cell in re.findall(r"[\d.]+ (?:± [\d.]+|MB)", row)
    }
    shown = {cell for row in rows(ROOT / "README.md") for cell in re.findall(r"[\d.]+ (?:± [\d.]+|MB)", row)}
    assert len(shown) == 7 and shown <= cells


def test_readme_fits_one_screen_and_promises_the_time_of_the_list() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 60
    assert f"(about {total_minutes(paper_names()):.0f} minutes)" in text
    assert f"about {total_minutes(paper_names()):.0f} minutes" in (ROOT / "docs" / "reproduce.md").read_text()


def test_command_line_page_is_up_to_date() -> None:
    assert cli_page.PAGE.read_text(encoding="utf-8") == cli_page.render(), "run python docs/cli_page.py"


def test_api_page_has_every_public_name() -> None:
    import filfl.flower
    import filfl.trackers

    shown = set(re.findall(r"^::: (\S+)$", (ROOT / "docs" / "api.md").read_text(), re.MULTILINE))
    public = {f"{m.__name__}.{name}" for m in (filfl, filfl.flower, filfl.trackers) for name in m.__all__}
    assert shown == public | {"filfl.values"}


def test_install_page_has_every_extra() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    table = re.findall(r"^\| (`.*`) \|", (ROOT / "docs" / "install.md").read_text(), re.MULTILINE)
    shown = {name for cell in table for name in re.findall(r"`(\w+)`", cell)}
    assert project["optional-dependencies"].keys() <= shown


def test_dataset_page_has_the_names_that_are_looked_for() -> None:
    page = (ROOT / "docs" / "datasets.md").read_text()
    for module in (femnist, shakespeare, cifar10):
        assert ", ".join(f"`{name}`" for name in module.NAMES) in page
    variables = {
        name for path in (ROOT / "src").rglob("*.py") for name in re.findall(r"_?FILFL_[A-Z_]+", path.read_text())
    }
    assert all(f"`{name}`" in (ROOT / "docs" / "install.md").read_text() for name in variables)


def test_site_is_built_strictly_and_loads_nothing_from_other_hosts(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="the extra docs is not installed")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    pages = [path.read_text(encoding="utf-8") for path in tmp_path.rglob("*.html")]
    assert len(pages) > 40
    loads = re.compile(r"""<(?:script|img|iframe|link)\b[^>]*(?:src|href)=["']?(?:https?:)?//[^"'> ]*|@import[^;]*//""")
    assert not {found for page in pages for found in loads.findall(page)}
    index = (tmp_path / "search" / "search_index.js").read_text(encoding="utf-8")
    for term in ("honest_gain", "filter.transport", "FILFL_DATA", "rounds.jsonl", "--resume", "power-of-choice"):
        assert term in index
    for section in ("records.html#where-checkpoints-are", "index.html#how-to-cite"):
        assert section in index
    assert "assets/search.js" in (tmp_path / "index.html").read_text(encoding="utf-8")


def test_filter_page_matches_the_study() -> None:
    study = json.loads((ROOT / "benchmarks" / "results" / "filter_study.json").read_text())
    page = (ROOT / "docs" / "filters.md").read_text(encoding="utf-8")
    assert filter_page.render(study, "images/filters.png") in page


def test_new_study_keeps_handwritten_text(tmp_path: Path) -> None:
    study = json.loads((ROOT / "tests" / "stored" / "quick_filter_study.json").read_text())
    page = tmp_path / "filters.md"
    filter_page.write_page({**study, "states": [], "runs": []}, page, tmp_path / "filters.png")
    first = page.read_text(encoding="utf-8")
    assert "its data was not there" in first
    page.write_text("Before. " + first + "After.", encoding="utf-8")
    filter_page.write_page(study, page, tmp_path / "filters.png")
    second = page.read_text(encoding="utf-8")
    assert second.startswith("Before. ") and second.endswith("After.") and "its data was not there" not in second
    assert filter_page.render(study, "filters.png") in second


def test_citation_has_the_package_version() -> None:
    assert f"version: {filfl.__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_every_make_target_has_help() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE).group(1).split()
    shown = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert all(re.search(rf"^  make {target} +\S", shown, re.MULTILINE) for target in targets)


def test_constraints_pin_every_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [name for names in project["optional-dependencies"].values() for name in names]
    wanted = [*project["dependencies"], *(name for name in extras if not name.startswith("filfl["))]
    pinned = {
        re.split("==", line)[0].lower().replace("_", "-")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
    }
    assert {re.split(r"[<>=\[]", name)[0].lower() for name in wanted} <= pinned


def test_wheel_is_complete(tmp_path: Path) -> None:
    import zipfile

    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        archive.extractall(tmp_path / "installed")
    source = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src" / "filfl").rglob("*") if path.is_file()}
    assert {name for name in source if "__pycache__" not in name} <= names
    assert not any(name.startswith(("tests", "benchmarks", "docs")) for name in names)
    code = "import filfl, sys, filfl.cli; print(filfl.__file__); filfl.simulate({'rounds': 1}); "
    code += "sys.argv = ['filfl', '--version']; filfl.cli.main()"
    environment = {"PYTHONPATH": str(tmp_path / "installed"), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert str(tmp_path / "installed") in done.stdout and f"filfl {filfl.__version__}" in done.stdout
