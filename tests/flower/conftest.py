"""Runs of the tests are stored where a test says, or in its own temporary directory."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def in_an_empty_directory(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """By default a run is stored below the current directory."""
    directory = tmp_path_factory.mktemp("current")
    monkeypatch.chdir(directory)
    return directory
