"""Nodes that fail, do not reply, send invalid data, reply late, join or reconnect affect no other node."""

import copy
import re
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Message
from flwr.common.constant import ErrorCode
from flwr.serverapp import strategy as flower
from hostile_nodes import FAULTS, altered, altered_test, error, run
from hypothesis import given, settings
from sites import FEATURES, SITES, federation, initial, loss_on_v, new_net, numbers, plain_app
from torch import nn

from filfl.errors import RunError
from filfl.flower import FilFL
from filfl.runs import read_run

pytestmark = pytest.mark.usefixtures("single_thread")


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_node_equals_a_missing_node(fault: str) -> None:
    tamper, reason = FAULTS[fault]
    grid = federation()
    grid.nodes[1000 + 17 * 2].tamper = tamper
    result, records = run(grid)
    without = federation()
    without.nodes[1000 + 17 * 2].connected = False
    expected, _ = run(without)
    np.testing.assert_allclose(numbers(result.arrays), numbers(expected.arrays), rtol=1e-5, atol=1e-7)
    for record in records:
        assert list(record["refused"]) == ["2"]
        assert re.search(reason, record["refused"]["2"])


def test_a_negative_variance_of_batchnorm_is_refused() -> None:
    """It would make every output of the averaged model NaN."""

    def with_norm() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.BatchNorm1d(FEATURES), nn.Linear(FEATURES, 3))

    grid, without = (federation(plain_app(with_norm)) for _ in range(2))
    grid.nodes[1000].tamper = altered(lambda arrays: {**arrays, "0.running_var": arrays["0.running_var"] - 10})
    without.nodes[1000].connected = False
    result, records = run(grid, arrays=initial(with_norm))
    expected, _ = run(without, arrays=initial(with_norm))
    np.testing.assert_allclose(numbers(result.arrays), numbers(expected.arrays), rtol=1e-5, atol=1e-7)
    assert all("0.running_var has a value that no training gives" in record["refused"]["0"] for record in records)


@settings(max_examples=settings.default.max_examples // 4)
@given(
    faults=st.lists(st.tuples(st.integers(0, SITES - 1), st.sampled_from(sorted(FAULTS))), max_size=SITES - 1),
    filter=st.sampled_from(["none", "dgf", "rgf"]),
)
def test_the_model_stays_finite_with_any_combination_of_faults(faults: list[tuple[int, str]], filter: str) -> None:
    grid = federation()
    for site, fault in faults:
        grid.nodes[1000 + 17 * site].tamper = FAULTS[fault][0]
    result, records = run(grid, rounds=2, filter=filter, k=3, evaluate=loss_on_v)
    assert np.isfinite(numbers(result.arrays)).all()
    bad = {str(site) for site, _ in faults}
    for record in records:
        assert set(record["refused"]) <= bad
        if record["did_filter"]:
            assert set(record["refused"]) == bad
            assert not bad & set(map(str, record["selected"]))


def test_metrics_that_differ_between_nodes_are_accepted() -> None:
    grid = federation()
    grid.nodes[1000].tamper = altered(mine=1.0)
    grid.nodes[1017].tamper = altered(train_loss=[1.0, 2.0])
    result, records = run(grid)
    expected, _ = run(federation())
    np.testing.assert_allclose(numbers(result.arrays), numbers(expected.arrays), rtol=1e-6)
    assert not any(record["refused"] for record in records)
    # Site 1 is left out of the mean of the train loss, and the metric of site 0 alone is not averaged.
    assert set(result.train_metrics_clientapp[1]) == {"train_loss"}
    without = federation()
    without.nodes[1017].connected = False
    assert result.train_metrics_clientapp[1] == pytest.approx(run(without)[0].train_metrics_clientapp[1])
    assert records[0]["notes"][:2] == [
        "metrics that half of the clients or fewer report are left out: mine",
        "1 of 6 clients did not report train_loss",
    ]


def test_replies_in_another_floating_point_type_are_averaged_as_by_flower() -> None:
    """scikit-learn's initial arrays are float64, and clients with float32 data reply float32."""

    def in_float32(reply: Message) -> Message:
        arrays = {name: Array(array.numpy().astype(np.float32)) for name, array in reply.content["arrays"].items()}
        reply.content["arrays"] = ArrayRecord(arrays)
        return reply

    grid, start = federation(), ArrayRecord(new_net().double().state_dict())
    for node in grid.nodes.values():
        node.tamper = in_float32
    result, records = run(grid, arrays=start)
    expected, _ = run(federation())
    assert not any(record["refused"] for record in records)
    np.testing.assert_allclose(numbers(result.arrays), numbers(expected.arrays), rtol=1e-5)
    assert {array.dtype for array in result.arrays.values()} == {"float32"}, "as Flower's mean"


@pytest.mark.parametrize("value", [200.0, float("nan")])
def test_one_strange_metric_of_a_test_does_not_cost_the_others(value: float) -> None:
    """A node may be slow, or have samples of one class only, so that a score of its own is not defined."""

    def evaluation(own: float) -> Any:
        grid = federation()
        for node_id, node in grid.nodes.items():
            node.tamper = altered_test(seconds=own if node_id == 1017 else 1.0)
        records: list[Any] = []
        FilFL(flower.FedAvg(), filter="none", k=2, callbacks=[lambda record, state: records.append(record)]).start(
            grid, initial(), num_rounds=1
        )
        return records[0]

    strange, usual = evaluation(value), evaluation(1.0)
    assert strange["test_loss"] == pytest.approx(usual["test_loss"], rel=1e-6)
    assert strange["metrics"]["seconds"] == pytest.approx(1.0) and not usual["notes"]
    assert "client 1: the metric seconds is" in strange["notes"][0] and strange["notes"][0].endswith("it is left out")


def test_thousands_of_strange_metrics_of_a_test_are_one_short_note() -> None:
    grid, names = federation(), [f"{i}{'x' * 200}" for i in range(1000)]
    for node_id, node in grid.nodes.items():
        node.tamper = altered_test(**dict.fromkeys(names, float("nan") if node_id == 1017 else 1.0))
    records: list[Any] = []
    FilFL(flower.FedAvg(), filter="none", k=2, callbacks=[lambda record, state: records.append(record)]).start(
        grid, initial(), num_rounds=1
    )
    assert all(len(note) < 400 for note in records[0]["notes"]) and "999 other metrics" in records[0]["notes"][0]


def test_thousands_of_metrics_with_hostile_names_are_one_short_note() -> None:
    grid = federation()
    grid.nodes[1000].tamper = altered(**{f"{i}\x1b[31m\u202e{'x' * 1000}": 1.0 for i in range(2000)})
    _, records = run(grid, rounds=1)
    (note,) = records[0]["notes"]
    assert note.startswith("metrics that half of the clients or fewer report are left out: 0 [31m x")
    assert note.endswith("and 1995 more") and len(note) < 400 and note.isprintable()


def test_a_large_increase_in_examples_is_refused() -> None:
    grid = federation()
    rounds = iter([20, 20, 5000])
    grid.nodes[1000].tamper = lambda reply: altered(**{"num-examples": next(rounds)})(reply)
    _, records = run(grid)
    assert records[2]["refused"] == {"0": "it claims 5,000 examples, but reported 20 at first"}
    assert not records[1]["refused"]
    _, records = run(federation(), max_examples=40)
    assert set(records[0]["refused"]) == {"3", "4", "5"}


def test_a_late_reply_is_dropped() -> None:
    grid = federation()
    late: list[Message] = []

    def hold(reply: Message) -> None:
        grid.stray += late  # its previous reply arrives together with the replies of this round
        late[:] = [copy.copy(reply)]

    grid.nodes[1000].tamper = hold
    result, records = run(grid)
    without = federation()
    without.nodes[1000].connected = False
    expected, _ = run(without)
    np.testing.assert_allclose(numbers(result.arrays), numbers(expected.arrays), rtol=1e-5, atol=1e-7)
    assert records[0]["refused"] == {"0": "timeout: no reply within 30 s"}
    assert any(
        "dropped a reply from node 1000: it replies to no current request" in note for note in records[2]["notes"]
    )


def test_unrequested_replies_are_dropped_and_recorded() -> None:
    grid = federation()

    def wrong_sender(reply: Message) -> Message:
        reply.metadata.__dict__["_src_node_id"] = 4711
        return reply

    def twice(reply: Message) -> Message:
        grid.stray.append(copy.copy(reply))
        return reply

    grid.nodes[1000].tamper = wrong_sender
    grid.nodes[1017].tamper = twice
    _, records = run(grid)
    assert records[0]["notes"] == ["dropped a reply from node 4711: the request was for node 1000"]
    assert records[0]["refused"] == {"0": "timeout: no reply within 30 s"}
    assert "dropped a reply from node 1017: it replies to no current request" in records[1]["notes"]


ENGINE_ERROR = """<class 'ray.exceptions.RayTaskError(ClientAppException)'>:<'\x1b[36mray::ClientAppActor.run()\x1b[39m (pid=22299)
  File "client_app.py", line 5, in train
    raise ValueError("the labels of this site are missing")
ValueError: the labels of this site are missing

The above exception was the direct cause of the following exception:

\x1b[36mray::ClientAppActor.run()\x1b[39m (pid=22299, repr=<flwr.simulation.ray_transport.ray_actor.ClientAppActor object>)
  File "ray_actor.py", line 65, in run
    raise ClientAppException(str(ex)) from ex
flwr.clientapp.client_app.ClientAppException: 
Exception ClientAppException occurred. Message: the labels of this site are missing'>"""  # noqa: E501, W291
"""A reason as Flower's simulation engine sends it."""


@pytest.mark.parametrize(
    ("code", "text", "reason"),
    [
        (2, ENGINE_ERROR, "error 2: ValueError: the labels of this site are missing"),
        (2, "<class 'KeyError'>:<''x''>", "error 2: <class 'KeyError'>:<''x''>"),
        (2, "", "error 2: no reason given"),
        (ErrorCode.MESSAGE_UNAVAILABLE, "Message Unavailable", "timeout: no reply within 30 s"),
        (ErrorCode.NODE_UNAVAILABLE, "Node Unavailable", "disconnected: Node Unavailable"),
    ],
)
def test_the_reason_of_an_error_names_its_cause(code: int, text: str, reason: str) -> None:
    grid = federation()
    grid.nodes[1000].tamper = lambda reply: error(reply, text, code)
    _, records = run(grid, rounds=1)
    assert records[0]["refused"] == {"0": reason}


def test_a_reason_in_a_record_has_limited_length() -> None:
    grid = federation()
    grid.nodes[1000].tamper = altered(lambda arrays: {**arrays, "x" * 10**6: arrays["bias"]})
    _, records = run(grid, rounds=1)
    assert records[0]["refused"]["0"].startswith("key xxx") and len(records[0]["refused"]["0"]) <= 200


def test_requests_expire_with_the_deadline() -> None:
    grid = federation()
    run(grid)
    assert set(grid.ttls) == {30.0}


def test_joining_and_reconnecting_nodes_get_the_expected_ids(tmp_path: Path) -> None:
    grid = federation()
    grid.nodes[1051].connected = False  # site 3 joins in the third round

    def change_connections(record: Any, state: Any) -> None:
        grid.nodes[1051].connected = record["round"] >= 2
        grid.nodes[1000].connected = record["round"] != 2  # site 0 is disconnected in the third round
        records.append(record)

    records: list[Any] = []
    FilFL(
        flower.FedAvg(fraction_evaluate=0.0),
        evaluate=loss_on_v,
        k=2,
        h=10,
        out=tmp_path / "run",
        callbacks=[change_connections],
    ).start(grid, initial(), num_rounds=4)
    # Ids are assigned in the order of joining: site 3 is the sixth, and site 0 gets its previous id.
    assert [record["available"] for record in records] == [
        [0, 1, 2, 3, 4],
        [0, 1, 2, 3, 4],
        [1, 2, 3, 4, 5],
        [*range(6)],
    ]
    assert [record["did_filter"] for record in records] == [True, False, True, True]
    assert read_run(tmp_path / "run").clients.names.tolist() == ["site0", "site1", "site2", "site4", "site5", "site3"]


def test_without_replies_the_model_is_unchanged_and_the_run_continues() -> None:
    grid = federation()
    for node in grid.nodes.values():
        node.tamper = lambda reply: None
    result, records = run(grid, rounds=5)
    np.testing.assert_array_equal(numbers(result.arrays), numbers(initial()))
    assert [record["notes"] for record in records] == [["no client replied; the model is unchanged"]] * 5


def test_nodes_that_disconnect_in_every_round_do_not_end_the_run() -> None:
    grid = federation()
    nodes = list(grid.nodes.values())
    for i, node in enumerate(nodes):
        node.tamper = error if i % 2 else lambda reply: None
    _, records = run(grid, rounds=5)
    assert all(record["notes"][0].startswith("no client replied") for record in records)
    nodes[0].tamper = lambda reply: error(reply, "the app is wrong", 2)
    with pytest.raises(RunError, match="every update was refused in 3 rounds"):
        run(grid, rounds=5)


def test_a_missing_client_evaluation_is_noted() -> None:
    grid = federation()
    grid.nodes[1000].tamper = lambda reply: None if reply.metadata.message_type == "evaluate" else reply
    records: list[Any] = []
    FilFL(flower.FedAvg(), filter="none", k=2, callbacks=[lambda record, state: records.append(record)]).start(
        grid, initial(), num_rounds=2, timeout=5.0
    )
    for t, record in enumerate(records, start=1):
        assert record["notes"] == [f"the test of client 0 in round {t} cannot be used: timeout: no reply within 5 s"]
