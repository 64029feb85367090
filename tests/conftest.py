"""Shared fixtures: a small federated problem that trains in a fraction of a second."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
import torch

from filfl import FederatedData
from filfl.cli import main
from filfl.system import one_thread

# The machine may be busy, so there is no deadline. "filfl" tries the same 100 examples every time, "more" tries 500 new
# ones. A test that sets its own number takes a fraction of `settings.default.max_examples`.
hypothesis.settings.register_profile("filfl", deadline=None, derandomize=True)
hypothesis.settings.register_profile("more", deadline=None, derandomize=False, print_blob=True, max_examples=500)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "filfl"))

# A shell starts background jobs with SIGINT ignored. Child processes inherit that, and tests that send SIGINT would
# hang.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

SMALL: dict[str, Any] = {
    "rounds": 4,
    "data.clients": 12,
    "availability.name": "redraw",
    "availability.n": 8,
    "availability.every": 2,
    "filter.size": 40,
    "filter.period": 2,
    "selection.k": 3,
    "model.hidden": [8],
}


@pytest.fixture
def small() -> dict[str, Any]:
    """Changes to the default config that make a run of a fraction of a second, on real digits."""
    return dict(SMALL)


@pytest.fixture(autouse=True)
def in_an_empty_directory(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Path | None:
    """Tests of Flower run in an empty directory, because a run on Flower is stored below the current one."""
    if request.path.parent.name != "flower":
        return None
    directory = tmp_path_factory.mktemp("current")
    monkeypatch.chdir(directory)
    return directory


@pytest.fixture
def blobs() -> FederatedData:
    """Three Gaussian blobs, with nine clients."""
    rng = np.random.default_rng(0)
    y = rng.integers(3, size=270)
    x = rng.normal(size=(270, 4)) + 2 * np.eye(3, 4)[y]
    return FederatedData.from_arrays(x, y, np.arange(270) % 9)


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """The environment of a subprocess: that of the tests, without colours, with a temporary home folder."""
    return {**os.environ, "NO_COLOR": "1", "COLUMNS": "120", "TERM": "dumb", "HOME": str(tmp_path)}


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Call the command `filfl` in this process, in tmp_path; returns its output after a check of the exit code."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str, code: int = 0) -> str:
        monkeypatch.setattr(sys, "argv", ["filfl", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        shown = "".join(capsys.readouterr())
        assert (ended.value.code or 0) == code, shown
        return shown

    return call


@pytest.fixture
def single_thread() -> Iterator[None]:
    """One thread of torch: for small networks a second one costs more than it saves."""
    with one_thread():
        yield


@pytest.fixture(autouse=True)
def number_of_threads_is_restored() -> Iterator[None]:
    """A test that leaves torch with another number of threads would change the tests after it."""
    before = torch.get_num_threads()
    yield
    after = torch.get_num_threads()
    torch.set_num_threads(before)
    assert after == before, f"the test left torch with {after} threads instead of {before}"
