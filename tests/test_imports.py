"""Imports point one way: a package imports only packages that are listed before it."""

import ast
from pathlib import Path

import filfl

SOURCE = Path(filfl.__file__).parent

ORDER = [
    {"errors", "rng", "system", "weights", "evaluation", "display", "config.schema"},  # foundations
    {"availability", "algorithms", "attacks", "aggregation", "selection", "data", "models"},  # plug-ins
    {"logits"},
    {"core"},
    {"filtering", "values"},
    {"config"},
    {"runs"},
    {"trackers"},
    {"simulation", "flower"},  # independent of each other
    {"comparison"},
    {"report"},
    {"commands"},
    {"cli"},
    {"__main__"},
]
RANK = {name: i for i, names in enumerate(ORDER) for name in names}
WITHIN = {
    *(("system", "errors"), ("weights", "errors"), ("config.schema", "errors"), ("evaluation", "weights")),
    ("evaluation", "errors"),
    *(("selection", "availability"), ("attacks", "availability"), ("attacks", "data"), ("aggregation", "data")),
    *(("filtering", "values"), ("values", "filtering")),
}
"""Imports between packages of one entry."""


def package(module: str) -> str:
    """The entry of a module, such as filfl.runs.store or filfl.config.schema."""
    parts = module.split(".")[1:]
    return "config.schema" if parts[:2] == ["config", "schema"] else parts[0]


def module_of(path: Path) -> str:
    return ".".join(["filfl", *path.relative_to(SOURCE).with_suffix("").parts])


def imported(path: Path) -> set[str]:
    """The modules of filfl that a file imports at run time."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            inside = node.module == "filfl"
            names |= {f"filfl.{alias.name}" for alias in node.names} if inside else {node.module or ""}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return {name for name in names if name.startswith("filfl.") and (SOURCE / name.split(".")[1]).exists()} | {
        name for name in names if name.startswith("filfl.") and (SOURCE / f"{name.split('.')[1]}.py").exists()
    }


FILES = sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")


def test_every_package_is_listed() -> None:
    assert {package(module_of(path)) for path in FILES} == set(RANK)


def test_imports_point_one_way() -> None:
    wrong = []
    for path in FILES:
        here = package(module_of(path))
        for name in imported(path):
            there = package(name)
            if here != there and RANK[there] >= RANK[here] and (here, there) not in WITHIN:
                wrong.append(f"{path.relative_to(SOURCE)} imports {name}")
    assert not wrong


def test_the_import_test_sees_every_form_of_import(tmp_path: Path) -> None:
    (tmp_path / "form.py").write_text(
        "import filfl.runs.store\nfrom filfl import weights\nfrom filfl.core import round\n"
    )
    assert imported(tmp_path / "form.py") == {"filfl.runs.store", "filfl.weights", "filfl.core"}
