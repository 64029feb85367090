"""`filter.least` on Flower: aggregations that need some number of replies get them."""

from typing import Any

import numpy as np
import pytest
from flwr.serverapp.strategy import Bulyan
from sites import federation, initial, loss_on_v, numbers

from filfl import Filtering
from filfl.flower import FilFL

pytestmark = pytest.mark.usefixtures("single_thread")
NEEDED = 4 * 1 + 3
"""The replies that Bulyan needs against one malicious node."""


def keep_two(clients: Any, reward: Any, rng: Any) -> Filtering:
    return Filtering(kept=tuple(clients[:2]))


def run(options: dict[str, Any]) -> tuple[bool, dict[str, Any]]:
    """Whether the model changed, and the record of the round."""
    records: list[dict[str, Any]] = []
    callbacks = [lambda record, state: records.append(record)]
    bulyan = Bulyan(fraction_evaluate=0.0, num_malicious_nodes=1)
    strategy = FilFL(bulyan, keep_two, k=NEEDED, h=2, evaluate=loss_on_v, options=options, callbacks=callbacks)
    result = strategy.start(federation(sites=8), initial(), num_rounds=1, timeout=30.0)
    return not np.array_equal(numbers(result.arrays), numbers(initial())), records[0]


def test_bulyan_has_the_replies_that_it_needs() -> None:
    moved, record = run({"filter.least": 1})
    assert not moved and len(record["filtered"]) == 2, "so that least has something to do"

    moved, record = run({})
    assert moved and len(record["filtered"]) == len(record["selected"]) == NEEDED
    assert "the filter kept 2 clients; extended to 7" in record["notes"]
