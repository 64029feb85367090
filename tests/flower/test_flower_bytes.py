"""The bytes in the records equal the size of the messages that Flower sends, within 5 %."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from flwr.app import Array, ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.serde import recorddict_to_proto
from flwr.serverapp import strategy as flower
from hypothesis import given
from hypothesis.extra.numpy import array_shapes, arrays
from sites import CLASSES, FEATURES, blobs, federation, initial, plain_app
from torch import nn

from federation import MemoryGrid
from filfl.flower import FilFL, FilteringSet, add_queries, keep_weights
from filfl.flower.logit_messages import NO_V
from filfl.flower.records import decoded
from filfl.runs import read_run

pytestmark = pytest.mark.usefixtures("single_thread")

BY_LOGITS = {"filter.reward": "ensemble", "filter.transport": "logits"}
M = 2000
"""Samples in V: enough for V and the logits to be of similar size to the model of 60 kB."""


class CountingGrid(MemoryGrid):
    """Counts the bytes of all messages, as Flower serializes them."""

    def __init__(self, nodes: dict[int, Any]) -> None:
        super().__init__(nodes)
        self.uplink = self.downlink = 0

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        messages = list(messages)
        self.downlink += sum(map(size_of, messages))
        replies = super().send_and_receive(messages, timeout=timeout)
        self.uplink += sum(map(size_of, replies))
        return replies


def size_of(message: Message) -> int:
    return recorddict_to_proto(message.content).ByteSize() if message.has_content() else 0


def new_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(FEATURES, 2000), nn.ReLU(), nn.Linear(2000, CLASSES))


def counting_grid() -> CountingGrid:
    app = plain_app(new_net, ClientApp(mods=[keep_weights(lambda context: new_net())]))
    x, y = blobs(1)
    add_queries(app, lambda context: (new_net(), [(x, y)], [(x, y)]))
    return CountingGrid(federation(app).nodes)


def run(grid: MemoryGrid, out: Path, options: dict[str, Any], evaluate: float = 0.0, **more: Any) -> list[Any]:
    strategy = FilFL(
        flower.FedAvg(fraction_evaluate=evaluate),
        filter="local-search",
        k=2,
        h=2,
        evaluate=FilteringSet(new_net, *blobs(0, size=M)),
        options=options,
        out=out,
        **more,
    )
    strategy.start(grid, initial(new_net), num_rounds=4, timeout=30.0)
    return read_run(out).records


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"selection.name": "power-of-choice"},
        {"selection.name": "divfl"},
        {"filter.data": "variable"},
        BY_LOGITS,
        {**BY_LOGITS, "selection.name": "power-of-choice"},
        {**BY_LOGITS, "selection.name": "divfl", "selection.of": "predictions"},
        {**BY_LOGITS, "filter.precision": "float16"},
        {**BY_LOGITS, "filter.precision": "int8"},
        {**BY_LOGITS, "filter.top": 2},
        {**BY_LOGITS, "filter.part": 1000},
        {**BY_LOGITS, "filter.part": 1000, "filter.top": 1, "filter.precision": "int8"},
    ],
    ids=lambda options: " ".join(f"{key}={value}" for key, value in options.items()) or "models",
)
def test_recorded_bytes_equal_sent_bytes(options: dict[str, Any], tmp_path: Path) -> None:
    grid = counting_grid()
    records = run(grid, tmp_path / "run", options)
    assert not any(record["refused"] for record in records)
    assert_equal(grid, records)


def test_bytes_of_client_evaluation_are_recorded(tmp_path: Path) -> None:
    grid = counting_grid()
    assert_equal(grid, run(grid, tmp_path / "run", {}, evaluate=0.5))


def test_sending_V_and_the_model_again_is_recorded(tmp_path: Path) -> None:
    grid = counting_grid()

    def restart(record: Any, state: Any) -> None:
        for node in grid.nodes.values():
            node.state = RecordDict()

    assert_equal(grid, run(grid, tmp_path / "run", BY_LOGITS, callbacks=[restart]))


def test_bytes_of_refused_replies_are_recorded(tmp_path: Path) -> None:
    grid = counting_grid()
    for node in list(grid.nodes.values())[1:]:
        node.app = plain_app(new_net)
    records = run(grid, tmp_path / "models", BY_LOGITS)
    assert len(records[0]["refused"]) == len(grid.nodes) - 1, "only one of these apps has the mod"
    assert_equal(grid, records)
    grid = counting_grid()

    def without_v(reply: Message) -> Message:
        return Message(RecordDict({"filfl": ConfigRecord({"reason": NO_V})}), reply_to=asked[-1])

    asked: list[Message] = []
    answer = grid.nodes[1000].app

    def app(message: Message, context: Any) -> Message:
        asked.append(message)
        return answer(message, context)

    grid.nodes[1000].app, grid.nodes[1000].tamper = app, without_v
    records = run(grid, tmp_path / "asks", BY_LOGITS)
    assert records[0]["refused"] == {"0": NO_V}
    assert_equal(grid, records)


def assert_equal(grid: CountingGrid, records: list[Any]) -> None:
    assert sum(record["uplink_bytes"] for record in records) == pytest.approx(grid.uplink, rel=0.05)
    assert sum(record["downlink_bytes"] for record in records) == pytest.approx(grid.downlink, rel=0.05)


@given(
    arrays(
        st.sampled_from([np.float32, np.float64, np.int64, np.uint8, np.bool_]),
        array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
        elements=st.integers(0, 1),
    ),
    st.booleans(),
)
def test_an_array_is_decoded_as_flower_does_it(values: Any, by_column: bool) -> None:
    array = Array(np.asfortranarray(values) if by_column else values)
    expected = array.numpy()
    found = decoded(array).numpy()
    assert found.dtype == expected.dtype and found.shape == expected.shape and np.array_equal(found, expected)


@pytest.mark.parametrize("cut", [0, 5, 60, -1])
def test_an_array_that_is_cut_off_is_not_decoded(cut: int) -> None:
    whole = Array(np.arange(8.0))
    part = Array(dtype=whole.dtype, shape=whole.shape, stype=whole.stype, data=whole.data[:cut])
    with pytest.raises(ValueError, match=r"EOF|magic|buffer|parse"):
        decoded(part)


def test_decoding_copies_nothing() -> None:
    array = Array(np.arange(1000.0))
    assert decoded(array).data_ptr() == np.frombuffer(array.data, np.uint8).ctypes.data + len(array.data) - 8000
