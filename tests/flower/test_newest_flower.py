"""The newest Flower that pip finds: the tests of the strategy pass with it, not only with the installed version."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.federation
TESTS = ("test_flower_composition.py", "test_flower_strategy.py", "test_flower_logits.py")


def test_the_newest_release_of_flower(tmp_path: Path) -> None:
    download = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--only-binary=:all:",
        "--dest",
        str(tmp_path),
        "flwr",
    ]
    found = subprocess.run(download, capture_output=True, text=True, timeout=300)
    if found.returncode:
        pytest.skip(f"pip found no release: {found.stderr.strip().splitlines()[-1]}")
    (wheel,) = tmp_path.glob("flwr-*.whl")
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(tmp_path / "newest")
    here = Path(__file__).parent
    folders = [tmp_path / "newest", *(Path(folder) for folder in sys.path if folder)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders))}
    where = "import flwr, pathlib; print(pathlib.Path(flwr.__file__).parents[1])"
    loaded = subprocess.run([sys.executable, "-c", where], env=environment, capture_output=True, text=True, check=True)
    assert Path(loaded.stdout.strip()) == tmp_path / "newest"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    run = subprocess.run(
        [*command, *(str(here / name) for name in TESTS)],
        env=environment,
        cwd=here.parents[1],
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert run.returncode == 0, f"with {wheel.name}:\n{run.stdout[-5000:]}"
