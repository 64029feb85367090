"""The documentation: its Python examples run, its links resolve, and its commands and numbers are up to date."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import filfl
import filter_page

ROOT = Path(__file__).parent.parent
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "examples").glob("*/README.md")),
]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


EXAMPLES = [(page.name, i, code) for page in PAGES for i, code in enumerate(blocks(page, "python"))]


@pytest.mark.parametrize(("page", "number", "code"), EXAMPLES, ids=[f"{page}-{i}" for page, i, _ in EXAMPLES])
def test_python_examples_run(page: str, number: int, code: str, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for promised in re.findall(r"print\(.*?\)  +# (\(.*\))", code):
        assert promised in done.stdout


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


def test_readme_commands_exist() -> None:
    from typer.main import get_command

    from filfl.cli import app

    known = get_command(app).commands
    for line in "\n".join(blocks(ROOT / "README.md", "bash")).splitlines():
        words = line.split("#")[0].split()
        if words and words[0] == "filfl":
            options = {name for parameter in known[words[1]].params for name in parameter.opts}
            assert {word for word in words if word.startswith("--")} <= options, line
        elif words:
            assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE), line


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
    import tomllib

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
