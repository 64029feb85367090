"""Many clients: the cost of a round and the size of its records depend on the clients that take part."""

import json
import tracemalloc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import filfl
from filfl import FederatedData
from filfl.availability.base import among
from filfl.availability.diurnal import Diurnal
from filfl.errors import PluginError, RunError
from filfl.report.series import CURVES
from filfl.runs import read_run
from filfl.runs.client_table import ROWS, ClientTable


def many(num_clients: int) -> FederatedData:
    """Clients with one sample each: the least data possible."""
    ends = np.arange(num_clients + 1)
    few = np.eye(3, dtype=np.float32)
    return FederatedData(
        x=np.zeros((num_clients, 3), dtype=np.float32),
        y=np.zeros(num_clients, dtype=np.int64),
        offsets=ends,
        train_ends=ends[1:],
        filter_x=few,
        filter_y=np.arange(3),
        test_x=few,
        test_y=np.arange(3),
        test_clients=np.full(3, -1),
        classes=3,
        names=np.arange(num_clients),
        noisy=np.zeros(num_clients, dtype=bool),
        scale=np.float32(1),
        shift=np.float32(0),
    )


class Peak:
    """The peak of the bytes allocated in a round. The first two rounds, which set things up, are not counted."""

    def __init__(self) -> None:
        self.bytes = 0

    def __call__(self, record: Mapping[str, Any], state: object) -> None:
        if record["round"] > 2:
            now, peak = tracemalloc.get_traced_memory()
            self.bytes = max(self.bytes, peak - now)
        tracemalloc.start()
        tracemalloc.reset_peak()


def peak_of(num_clients: int, config: dict[str, Any]) -> int:
    peak = Peak()
    try:
        filfl.simulate(
            {"rounds": 4, "selection.k": 20, "model.hidden": [4], **config}, data=many(num_clients), callbacks=[peak]
        )
    finally:
        tracemalloc.stop()
    return peak.bytes


SLACK = 300_000
"""Bytes: far less than an object for each of a million clients, or a second array of their ids."""


def test_the_memory_of_a_round_grows_only_by_the_ids_of_available_clients() -> None:
    config = {"filter.name": "none"}
    small, large = peak_of(10_000, config), peak_of(1_000_000, config)
    assert large - small < 8 * 990_000 + SLACK


def test_with_few_available_clients_memory_does_not_grow_with_all_clients() -> None:
    config = {"availability.name": "redraw", "availability.n": 40, "availability.every": 1, "filter.name": "dgf"}
    assert peak_of(1_000_000, config) < peak_of(1_000, config) + SLACK


@pytest.mark.parametrize("chi", ["none", "dgf"])
def test_records_count_many_clients_instead_of_listing_them(chi: str, tmp_path: Path) -> None:
    config = {"rounds": 2, "selection.k": 5, "filter.name": chi, "filter.cap": 8, "model.hidden": [4]}
    result = filfl.simulate(config, data=many(100_000), out=tmp_path / "run")
    for record in result.records:
        assert record["available"] is None and record["num_available"] == 100_000
        assert len(json.dumps(record)) < 4_000
        assert record["num_filtered"] == (100_000 if record["filtered"] is None else len(record["filtered"]))
    assert [record["filtered"] is None for record in result.records] == [chi == "none"] * 2
    checkpoints = sum(path.stat().st_size for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert checkpoints < (10_000 if chi == "none" else 80_000), (
        "one bit per client, for S_(t-1) and for the last filtering"
    )
    run = read_run(tmp_path / "run")
    assert len(run.clients) == 100_000 and run.clients.names[-1] == "99999" and run.clients.num_train[-1] == 1
    assert len(run.may_be_chosen(result.records[0])) == result.records[0]["num_filtered"]


def test_available_clients_that_a_record_does_not_list_can_be_recomputed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = many(400).with_wrong_labels(0.5, 0)
    config = {"rounds": 3, "selection.k": 2, "filter.name": "none", "availability.name": "diurnal"}
    listed = filfl.simulate(config, data=data, out=tmp_path / "listed")
    monkeypatch.setattr("filfl.core.server.MAX_LISTED", 100)
    counted = filfl.simulate(config, data=data, out=tmp_path / "counted")
    long, short = read_run(tmp_path / "listed"), read_run(tmp_path / "counted")
    for a, b in zip(listed.records, counted.records, strict=True):
        assert b["available"] is None and b["num_available"] == len(a["available"]) > 100
        assert a["selected"] == b["selected"]
        assert short.may_be_chosen(b).tolist() == long.may_be_chosen(a).tolist() == a["available"]
        share = 100 * np.mean([data.noisy[k] for k in a["available"]])
        assert CURVES["noisy"].of(b, short) == CURVES["noisy"].of(a, long) == pytest.approx(share)


ids = st.lists(st.integers(0, 40), unique=True).map(sorted)


@given(st.lists(st.integers(-3, 45)), ids)
def test_among_is_membership(asked: list[int], others: list[int]) -> None:
    assert among(asked, np.array(others, dtype=np.int64)).tolist() == [k in others for k in asked]


def test_among_accepts_integers_of_any_size() -> None:
    assert among([2**70, 1], np.arange(3)).tolist() == [False, True]


def test_the_pool_of_a_selection_is_read_only_and_errors_do_not_list_it() -> None:
    def shuffling(pool: np.ndarray, k: int, ask: Any, rng: np.random.Generator) -> np.ndarray:
        with pytest.raises(ValueError, match="read-only"):
            rng.shuffle(pool)
        assert pool.dtype == np.int64 and len(pool) == 1000
        return pool[:k] - 1

    with pytest.raises(PluginError, match=r"at most 2 of the 1000 clients of the pool \(got \[-1, 0\]\)"):
        filfl.simulate({"rounds": 1, "selection.k": 2, "filter.name": "none"}, data=many(1000), selection=shuffling)


def faults(count: int, odd: bool) -> np.ndarray:
    return np.array(["sign-flip" if k % 2 == odd else "" for k in range(count)], dtype=object)


names = st.lists(st.text(st.characters(codec=None, exclude_characters="\x00"), max_size=6), max_size=5)


@given(names, st.booleans())
def test_clients_file_round_trip(tmp_path_factory: pytest.TempPathFactory, given_names: list[str], odd: bool) -> None:
    path = tmp_path_factory.getbasetemp() / "clients.csv"
    count = len(given_names)
    trusted = np.arange(count) % 3 == 0
    ClientTable(np.array(given_names, dtype=np.str_), np.arange(count), faults(count, odd), trusted).write(path)
    back = ClientTable.read(path)
    assert back.names.tolist() == given_names and back.num_train.tolist() == list(range(count))
    assert back.fault.tolist() == faults(count, odd).tolist() and back.trusted.tolist() == trusted.tolist()
    assert back.noisy.tolist() == [k % 2 == odd for k in range(count)]


def test_clients_file_of_several_pieces(tmp_path: Path) -> None:
    count = ROWS + 3
    clients = ClientTable(np.arange(count), np.arange(count), faults(count, 0), np.zeros(count, dtype=bool))
    clients.write(tmp_path / "clients.csv")
    back = ClientTable.read(tmp_path / "clients.csv")
    assert back.num_train.tolist() == list(range(count)) and back.names[-1] == str(count - 1)
    assert back.fault.tolist() == clients.fault.tolist()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "id,name\n",
        "id,name,num_train,fault\n0,a,1\n",
        "id,name,num_train,fault\n1,a,1,\n",
        "id,name,num_train,fault\n0,a,many,\n",
        "id,name,num_train,noisy\n0,a,1,0\n",
        'id,name,num_train,fault\n0,"a,1,\n',
    ],
)
def test_a_damaged_clients_file_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "clients.csv").write_text(text)
    with pytest.raises(RunError, match=r"clients\.csv is damaged; run again with --resume to repair it"):
        ClientTable.read(tmp_path / "clients.csv")


def test_a_record_counts_available_clients_if_there_are_too_many_to_list() -> None:
    available = Diurnal()(1, 50_000, 0)
    config = {"rounds": 1, "selection.k": 2, "filter.name": "none", "availability.name": "diurnal"}
    (record,) = filfl.simulate(config, data=many(50_000)).records
    assert record["available"] is None and record["num_available"] == len(available) == record["num_filtered"]
    assert set(record["selected"]) <= set(available.tolist())
