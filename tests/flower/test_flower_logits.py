"""Filter rounds by logits on Flower: clients keep their weights between two messages; false claims are refused."""

import itertools
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import strategy as flower
from sites import SITES, blobs, federation, initial, new_net, numbers, plain_app

from federation import MemoryGrid
from filfl.errors import ConfigError, RunError
from filfl.flower import FilFL, FilteringSet, keep_weights
from filfl.flower.client_logits import KEPT
from filfl.flower.logit_messages import LOGITS, NO_WEIGHTS, V
from filfl.runs import read_run

pytestmark = pytest.mark.usefixtures("single_thread")

ENSEMBLE = {"filter.reward": "ensemble"}
BY_LOGITS = {**ENSEMBLE, "filter.transport": "logits"}


def keeping_app() -> ClientApp:
    return plain_app(app=ClientApp(mods=[keep_weights(lambda context: new_net())]))


def run(grid: MemoryGrid, out: Path | None, options: dict[str, Any] = BY_LOGITS, rounds: int = 3, **more: Any) -> Any:
    strategy = FilFL(
        flower.FedAvg(fraction_evaluate=0.0),
        k=2,
        h=2,
        evaluate=FilteringSet(new_net, *blobs(0)),
        options=options,
        out=out,
        **{"filter": "local-search", **more},
    )
    return strategy.start(grid, initial(), num_rounds=rounds, timeout=30.0)


def test_filtering_by_logits_equals_filtering_by_models(tmp_path: Path) -> None:
    by_models = run(federation(keeping_app()), tmp_path / "models", ENSEMBLE, rounds=5)
    by_logits = run(federation(keeping_app()), tmp_path / "logits", rounds=5)
    np.testing.assert_array_equal(numbers(by_logits.arrays), numbers(by_models.arrays))
    records = [read_run(tmp_path / name).records for name in ("models", "logits")]
    for key in ("filtered", "selected", "did_filter", "refused", "selected_train_loss"):
        assert [record[key] for record in records[0]] == [record[key] for record in records[1]]


def test_V_is_sent_once_and_only_selected_nodes_upload(tmp_path: Path) -> None:
    grid = federation(keeping_app())
    run(grid, tmp_path / "run", rounds=4)
    filterings = [record for record in read_run(tmp_path / "run").records if record["did_filter"]]
    assert len(filterings) == 2
    for i, node in enumerate(grid.nodes.values()):
        assert sum(V in got for got in node.got) == 1
        uploads = sum(got == {"filfl"} for got in node.got)
        assert uploads == sum(i in record["selected"] for record in filterings)


@pytest.mark.parametrize(
    "encoding",
    [
        {"filter.precision": "float16"},
        {"filter.precision": "int8"},
        {"filter.top": 2},
        {"filter.part": 15},
        {"filter.part": 15, "filter.top": 1, "filter.precision": "int8"},
    ],
    ids=lambda encoding: " ".join(f"{key}={value}" for key, value in encoding.items()),
)
def test_every_encoding_passes_the_check(encoding: dict[str, Any], tmp_path: Path) -> None:
    run(federation(keeping_app()), tmp_path / "run", {**BY_LOGITS, **encoding})
    for record in read_run(tmp_path / "run").records:
        assert not record["refused"] and record["selected"]


def test_an_app_without_keep_weights_is_refused_with_advice(tmp_path: Path) -> None:
    grid = federation(keeping_app())
    next(iter(grid.nodes.values())).app = plain_app()
    run(grid, tmp_path / "run", rounds=1)
    refused = read_run(tmp_path / "run").records[0]["refused"]
    assert list(refused) == ["0"] and "add mods=[filfl.flower.keep_weights" in refused["0"]


def test_a_node_that_fails_between_logits_and_upload_is_replaced(tmp_path: Path) -> None:
    run(federation(keeping_app()), tmp_path / "whole", rounds=1, filter="keep-all")
    [whole] = read_run(tmp_path / "whole").records
    chosen = whole["selected"][0]
    grid = federation(keeping_app())
    node = list(grid.nodes.values())[chosen]

    def no_upload(reply: Message) -> Message | None:
        return reply if LOGITS in reply.content else None

    node.tamper = no_upload
    run(grid, tmp_path / "run", rounds=1, filter="keep-all")
    [record] = read_run(tmp_path / "run").records
    assert record["refused"] == {str(chosen): "timeout: no reply within 30 s"}
    assert len(record["selected"]) == 2 and chosen not in record["selected"]
    assert set(whole["selected"][1:]) <= set(record["selected"])


def test_a_restarted_node_gets_V_again_and_has_no_weights(tmp_path: Path) -> None:
    grid = federation(keeping_app())

    def restart(record: Any, state: Any) -> None:
        for node in grid.nodes.values():
            node.state = RecordDict()

    run(grid, tmp_path / "run", rounds=3, callbacks=[restart])
    assert all(sum(V in got for got in node.got) == 2 for node in grid.nodes.values())
    assert not any(record["refused"] for record in read_run(tmp_path / "run").records)
    forgetful = federation(keeping_app())
    node = forgetful.nodes[1000]

    def forget(reply: Message) -> Message:
        node.state = RecordDict()
        return reply

    node.tamper = forget
    run(forgetful, tmp_path / "other", rounds=4)
    reasons = {why for record in read_run(tmp_path / "other").records for why in record["refused"].values()}
    assert reasons <= {NO_WEIGHTS}


def change_logits(reply: Message) -> Message:
    if LOGITS in reply.content:
        values = reply.content[LOGITS]["values"].numpy() + np.float32([1, 0, 0])
        reply.content[LOGITS] = ArrayRecord({"values": Array(values.astype(np.float32))})
    return reply


def change_weights(reply: Message) -> Message:
    if "arrays" in reply.content:
        other = {name: Array(-array.numpy()) for name, array in reply.content["arrays"].items()}
        reply.content["arrays"] = ArrayRecord(other)
    return reply


@pytest.mark.parametrize("change", [change_logits, change_weights])
def test_a_false_claim_is_refused_and_replaced(change: Any, tmp_path: Path) -> None:
    run(federation(keeping_app()), tmp_path / "whole", rounds=1, filter="keep-all")
    false = read_run(tmp_path / "whole").records[0]["selected"][0]
    grid = federation(keeping_app())
    list(grid.nodes.values())[false].tamper = change
    run(grid, tmp_path / "run", rounds=3, filter="keep-all")
    for record in read_run(tmp_path / "run").records:
        assert false not in record["selected"] or not record["did_filter"]
        assert len(record["selected"]) == 2
        assert all("do not match the claimed logits" in why for why in record["refused"].values())


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (np.full((40, 3), np.nan, np.float32), "not finite"),
        (np.full((40, 3), 1e30, np.float32), "must be at most"),
        (np.zeros((39, 3), np.float32), "have shape"),
        (np.zeros((40, 3), np.float64), "have dtype"),
    ],
)
def test_malformed_logits_are_refused_on_arrival(values: Any, reason: str, tmp_path: Path) -> None:
    grid = federation(keeping_app())

    def send(reply: Message) -> Message:
        if LOGITS in reply.content:
            reply.content[LOGITS] = ArrayRecord({"values": Array(values)})
        return reply

    grid.nodes[1000].tamper = send
    run(grid, tmp_path / "run", rounds=1)
    [record] = read_run(tmp_path / "run").records
    assert list(record["refused"]) == ["0"] and reason in record["refused"]["0"]


def test_kept_weights_are_dropped_after_upload_training_or_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid = federation(keeping_app())
    run(grid, tmp_path / "run", rounds=1, filter="keep-all")
    [record] = read_run(tmp_path / "run").records
    keeping = [KEPT in node.state for node in grid.nodes.values()]
    assert not any(keeping[k] for k in record["selected"]), "weights are dropped after their upload"
    assert sum(keeping) >= SITES - len(record["selected"]) - 1, "a decisive claim is checked as well"
    [first, *_] = [node_id for node_id, node in grid.nodes.items() if KEPT in node.state]
    # Other requests keep the weights until the deadline; a new training replaces them.
    grid.send_and_receive([Message(RecordDict(initial_and_config()), node, "evaluate") for node in grid.nodes])
    assert [KEPT in node.state for node in grid.nodes.values()] == keeping
    grid.send_and_receive([Message(RecordDict(initial_and_config()), first, "train")])
    assert KEPT not in grid.nodes[first].state
    assert sum(KEPT in node.state for node in grid.nodes.values()) == sum(keeping) - 1
    monkeypatch.setattr(time, "time", lambda: 10.0**12)
    grid.send_and_receive([Message(RecordDict(initial_and_config()), node, "evaluate") for node in grid.nodes])
    assert not any(KEPT in node.state for node in grid.nodes.values())


def test_clock_jumps_do_not_drop_kept_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ahead = (10.0**9 * i for i in itertools.count(2))  # 30 years between two messages
    monkeypatch.setattr("filfl.flower.client_logits.time", SimpleNamespace(time=lambda: next(ahead)))
    run(federation(keeping_app()), tmp_path / "run")
    assert not any(record["refused"] for record in read_run(tmp_path / "run").records)


def test_a_reply_without_content_is_refused(tmp_path: Path) -> None:
    grid = federation(keeping_app())

    def emptied(reply: Message) -> Message:
        reply.__dict__["_content"] = None
        return reply

    grid.nodes[1000].tamper = emptied
    run(grid, tmp_path / "run", rounds=1)
    [record] = read_run(tmp_path / "run").records
    assert list(record["refused"]) == ["0"] and record["selected"]


def test_a_resumed_server_sends_V_with_the_first_request(tmp_path: Path) -> None:
    """In a new Flower run the nodes' state is empty. A request without V would fail and cost one model per node."""

    class Killed(Exception):
        """Raised to end the server in the middle of a run."""

    def kill(record: Any, state: Any) -> None:
        raise Killed

    with pytest.raises(Killed):
        run(federation(keeping_app()), tmp_path / "run", callbacks=[kill])
    grid = federation(keeping_app())
    run(grid, tmp_path / "run")
    assert [record["round"] for record in read_run(tmp_path / "run").records] == [1, 2, 3]
    for node in grid.nodes.values():
        assert [V in got for got in node.got if "filfl" in got and got != {"filfl"}] == [True], (
            "one request with V, in the only filter round"
        )


def test_top_must_be_below_the_number_of_classes() -> None:
    with pytest.raises(
        ConfigError, match=r"filter.top must be below the number of classes of the model, which has 3 classes"
    ):
        run(federation(keeping_app()), None, {**BY_LOGITS, "filter.top": 3})


def initial_and_config() -> dict[str, Any]:
    return {"arrays": initial(), "config": ConfigRecord({})}


def test_logits_need_the_ensemble_and_a_filtering_set() -> None:
    with pytest.raises(ConfigError, match=r'filter.reward = "ensemble"'):
        FilFL(flower.FedAvg(), options={"filter.transport": "logits"}, evaluate=FilteringSet(new_net, *blobs(0)))
    with pytest.raises(ConfigError, match="FilteringSet"):
        FilFL(flower.FedAvg(), options=BY_LOGITS, evaluate=lambda arrays: 1.0)


def test_without_the_mod_on_any_node_the_run_stops_at_its_first_filter_round() -> None:
    strategy = FilFL(
        flower.FedAvg(),
        filter="prune",
        k=2,
        evaluate=FilteringSet(new_net, *blobs(0)),
        options={"filter.transport": "logits"},
        out=None,
    )
    with pytest.raises(RunError, match=r"nobody sent logits: .* add mods="):
        strategy.start(federation(), initial(), num_rounds=7)
