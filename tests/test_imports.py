"""Imports point one way: from the later rooms to the earlier ones, never back."""

import ast
from pathlib import Path

import filfl

SOURCE = Path(filfl.__file__).parent

ORDER = [
    # the ground floor: known to everybody, knowing nobody
    "errors",
    "options",
    "rng",
    "clock",
    "cores",
    "weights",
    "evaluation",
    "logits",
    # the way of the data
    "data",
    "models",
    "availability",
    "filtering",
    "selection",
    "algorithms",
    "attacks",
    "clients",
    "aggregation",
    "server",
    "conversation",
    "round",
    # what stands around it
    "config",
    "runs",
    "trackers",
    "simulation",
    "flower",
    "workers",
    "compare",
    "reproduce",
    "report",
    "progress",
    "commands",
    "cli",
]

CONFIG = {"plugins", "sections", "config", "figure", "experiment", "config_reference"}
"""Modules that will be one package."""


def home(module: str) -> str:
    return "config" if module in CONFIG else module


def room(path: Path) -> str:
    return home(path.relative_to(SOURCE).parts[0].removesuffix(".py"))


def imported(path: Path) -> set[str]:
    names = set()
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            assert node.level == 0, f"{path}: imports name their room"
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return {home(name.split(".")[1]) for name in names if name.startswith("filfl.")}


def test_every_room_stands_in_the_order() -> None:
    rooms = {room(path) for path in SOURCE.rglob("*.py")} - {"__init__"}
    assert rooms == set(ORDER)


def test_imports_point_one_way() -> None:
    wrong = [
        f"{path.relative_to(SOURCE)} imports {name}"
        for path in SOURCE.rglob("*.py")
        if path != SOURCE / "__init__.py"
        for name in imported(path)
        if ORDER.index(name) > ORDER.index(room(path))
    ]
    assert not wrong
