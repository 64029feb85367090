"""Nodes that lie: they are named, and nothing else differs from a federation in which they are silent."""

import csv
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message, MetricRecord, RecordDict
from flwr.serverapp import strategy as flower
from hostile_nodes import ANSWERS, OUTLIERS, QUERYING, altered, assert_silent, on_flower, run, to_query, with_queries
from sites import SITES, federation, initial

from filfl.errors import RunError
from filfl.flower import FilFL
from filfl.flower.node_registry import max_partition, safe_name
from filfl.runs import read_run
from hostile import TEXTS

pytestmark = pytest.mark.usefixtures("single_thread")
LIAR = 1000 + 17 * 2


@pytest.mark.parametrize("lie", OUTLIERS)
def test_updates_and_counts_far_from_those_of_the_others_are_refused_from_the_first_round(lie: str) -> None:
    assert_silent(*OUTLIERS[lie], lambda reply: None)


@pytest.mark.parametrize("lie", ANSWERS)
def test_a_false_answer_to_a_query_equals_no_answer(lie: str) -> None:
    options = QUERYING["federated" if list(ANSWERS).index(lie) % 2 else "power-of-choice"]
    assert_silent(*ANSWERS[lie], to_query(lambda reply: None), **options)


def test_an_infinite_loss_blinds_neither_a_federated_filter_nor_wins_power_of_choice() -> None:
    for options in QUERYING.values():
        assert_silent(*ANSWERS["answers inf"], to_query(lambda reply: None), **options)


@pytest.mark.parametrize("seed", range(8))
def test_random_lies(seed: int) -> None:
    on_flower(seed)


def handshake(**metrics: Any) -> Any:
    def tamper(reply: Message) -> Message:
        if reply.metadata.message_type == "query.filfl_hello":
            reply.content = RecordDict({"metrics": MetricRecord({**reply.content["metrics"], **metrics})})
        return reply

    return tamper


def test_a_number_of_examples_of_the_handshake_that_is_not_credible_is_refused() -> None:
    grid = with_queries()
    grid.nodes[LIAR].tamper = handshake(**{"num-examples": 10**9})
    _, records = run(grid, 1, filter="dgf", k=3, options={"filter.data": "federated"})
    assert "it claims 1,000,000,000 examples" in records[0]["refused"]["2"]


def test_a_large_partition_id_does_not_make_a_large_table_of_clients(tmp_path: Path) -> None:
    grid = with_queries()
    grid.nodes[LIAR].tamper = handshake(**{"partition-id": 999_999})
    _, records = run(grid, 1, identity="partition", out=tmp_path / "run")
    most = max_partition(SITES)
    reason = f"its partition id 999999 is not between 0 and {most}, the limit for this number of nodes"
    assert f"node {LIAR} is left out: {reason}" in records[0]["notes"]
    assert len(read_run(tmp_path / "run").clients) == SITES
    assert records[0]["available"] == [0, 1, 3, 4, 5]


def test_names_of_nodes_are_safe_in_files_and_logs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    grid = federation()
    names = ["n" * 131_073, "\x1b[2Jsite", "a\r\nb\x00", "\u202egpj", "site4", ""]
    for node, name in zip(grid.nodes.values(), names, strict=True):
        node.name = name
        node.tamper = altered(train_loss=0.1)
    run(grid, 1, out=tmp_path / "run")
    clients = read_run(tmp_path / "run").clients.names.tolist()
    assert all(name.isprintable() and len(name) < 150 for name in clients)
    assert clients[4:] == ["site4", f"node-{1000 + 17 * 5}"] and clients[0].startswith("nnn")
    with (tmp_path / "run" / "clients.csv").open(newline="") as file:
        assert len(list(csv.reader(file))) == 1 + SITES
    assert all(c.isprintable() or c in "\n\t" for record in caplog.records for c in record.getMessage())


def test_a_name_that_was_cleaned_is_not_that_of_another_node() -> None:
    assert safe_name("hospital-3", 7) == "hospital-3" and safe_name("", 7) == "node-7"
    assert safe_name("hospital-3\u200b", 7) == safe_name("\x1bhospital-3", 7) == "hospital-3 (node 7)"


@pytest.mark.parametrize("text", [text for text in TEXTS if "\ud800" not in text], ids=lambda text: ascii(text)[:20])
def test_reasons_of_nodes_are_safe_in_records_and_logs(text: str, caplog: pytest.LogCaptureFixture) -> None:
    from hostile_nodes import error

    grid = federation()
    grid.nodes[LIAR].tamper = lambda reply: error(reply, text)
    _, records = run(grid, 1)
    assert records[0]["refused"]["2"].isprintable() and len(records[0]["refused"]["2"]) <= 200
    assert all(c.isprintable() or c in "\n\t" for record in caplog.records for c in record.getMessage())


@pytest.mark.parametrize("change", [{"eval_loss": float("nan")}, {"eval_loss": 1e308}, {"num-examples": 10**9}])
def test_a_test_by_clients_is_not_taken_over_by_one(change: dict[str, Any]) -> None:
    def metrics(tamper: Any) -> list[Any]:
        grid, records = federation(), []
        grid.nodes[LIAR].tamper = lambda reply: tamper(reply) if reply.metadata.message_type == "evaluate" else reply
        callbacks = [lambda record, state: records.append(record)]
        FilFL(flower.FedAvg(), filter="none", k=SITES, callbacks=callbacks).start(grid, initial(), num_rounds=1)
        assert records[0]["notes"] and "client 2" in records[0]["notes"][0]
        return [records[0]["test_loss"], *records[0]["metrics"].values()]

    def lie(reply: Message) -> Message:
        reply.content = RecordDict({"metrics": MetricRecord({**reply.content["metrics"], **change})})
        return reply

    assert metrics(lie) == pytest.approx(metrics(lambda reply: None))


def test_a_run_in_which_everybody_is_refused_stops_and_can_be_resumed(tmp_path: Path) -> None:
    grid = federation()
    for node in grid.nodes.values():
        node.tamper = altered(**{"num-examples": 0})
    with pytest.raises(RunError, match=r"every update was refused in 3 rounds in a row; in round 3, client 0: the num"):
        run(grid, 6, out=tmp_path / "run")
    for node in grid.nodes.values():
        node.tamper = lambda reply: reply
    _, records = run(grid, 6, out=tmp_path / "run")
    assert [record["round"] for record in records] == [4, 5, 6]
    assert not any(record["refused"] for record in records)
