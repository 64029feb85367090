"""Small networks: one thread each, as a second one costs more than it brings."""

from collections.abc import Iterator

import pytest

from filfl.simulation.setup import one_thread


@pytest.fixture(autouse=True)
def single_thread() -> Iterator[None]:
    with one_thread():
        yield
