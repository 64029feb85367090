"""Resuming a run after the server was killed, with the same client ids; conversion between records and weights."""

import json
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, MetricRecord
from flwr.serverapp import strategy as flower
from hypothesis import given
from sites import SITES, batches, federation, initial, loss_on_v, new_net, numbers, plain_app

import filfl
from federation import MemoryGrid, Node
from filfl.errors import RunError
from filfl.flower import FilFL, add_queries
from filfl.flower.node_registry import NodeRegistry, max_partition
from filfl.flower.records import aggregated, layout_of, to_arrays, to_gradient, to_weights
from filfl.flower.wrapped_strategy import WrappedStrategy
from filfl.runs import read_run

pytestmark = pytest.mark.usefixtures("single_thread")

ROUNDS = 6


class Killed(Exception):
    """Raised to end the server in the middle of a run."""


def kill_after(round: int) -> Any:
    def watch(record: Any, state: Any) -> None:
        if record["round"] == round:
            raise Killed

    return watch


def strategy(wrapped: flower.FedAvg, out: Path, **options: Any) -> FilFL:
    options = {"evaluate": loss_on_v, "k": 2, "h": 3, "out": out, **options}
    return FilFL(wrapped, **options)


WRAPPED = {
    "FedAvg": lambda: flower.FedAvg(fraction_evaluate=0.0),
    "FedAdam": lambda: flower.FedAdam(fraction_evaluate=0.0, eta=0.05),
    "FedAvgM": lambda: flower.FedAvgM(fraction_evaluate=0.0, server_momentum=0.9),
}


@pytest.mark.parametrize("name", WRAPPED)
@pytest.mark.parametrize("killed_after", [1, 4])
def test_a_resumed_run_equals_an_uninterrupted_one(name: str, killed_after: int, tmp_path: Path) -> None:
    whole = strategy(WRAPPED[name](), tmp_path / "whole").start(federation(), initial(), num_rounds=ROUNDS)
    cut = tmp_path / "cut"
    with pytest.raises(Killed):
        strategy(WRAPPED[name](), cut, callbacks=[kill_after(killed_after)]).start(
            federation(), initial(), num_rounds=ROUNDS
        )
    grid = federation()
    # The initial weights of the resumed server may differ; they are not used.
    other = ArrayRecord({key: Array(array.numpy() + 1) for key, array in initial().items()})
    resumed = strategy(WRAPPED[name](), cut).start(grid, other, num_rounds=ROUNDS)
    np.testing.assert_array_equal(numbers(resumed.arrays), numbers(whole.arrays))
    assert (cut / "rounds.jsonl").read_bytes() == (tmp_path / "whole" / "rounds.jsonl").read_bytes()
    assert len(read_run(cut).times) == ROUNDS


def test_early_stopping_ends_the_run_also_after_a_resume(tmp_path: Path) -> None:
    tested = {"evaluate_fn": lambda t, arrays: MetricRecord({"f1": 1.0 - min(t, 2)})}  # best before the first round
    stopping = filfl.EarlyStopping("f1", patience=3)
    results = {}
    for name in ("whole", "cut"):
        if name == "cut":
            with pytest.raises(Killed):
                strategy(WRAPPED["FedAvg"](), tmp_path / name, callbacks=[kill_after(2), stopping]).start(
                    federation(), initial(), num_rounds=ROUNDS, **tested
                )
        results[name] = strategy(WRAPPED["FedAvg"](), tmp_path / name, callbacks=[stopping]).start(
            federation(), initial(), num_rounds=ROUNDS, **tested
        )
        run = read_run(tmp_path / name)
        assert len(run.records) == 4 and run.finished
        assert run.stopped == "f1 did not improve for 3 tests (best 0 in round 1)"
    np.testing.assert_array_equal(numbers(results["whole"].arrays), numbers(results["cut"].arrays))


def test_a_finished_run_is_not_overwritten(tmp_path: Path) -> None:
    strategy(flower.FedAvg(fraction_evaluate=0.0), tmp_path / "run").start(federation(), initial(), num_rounds=2)
    with pytest.raises(RunError, match=r"holds a finished run of 2 rounds; to continue it"):
        strategy(flower.FedAvg(fraction_evaluate=0.0), tmp_path / "run").start(federation(), initial(), num_rounds=2)
    with pytest.raises(RunError, match=r"another config \(filter.least: 2 there, 3 here\)"):
        strategy(flower.FedAvg(fraction_evaluate=0.0), tmp_path / "run", k=3).start(
            federation(), initial(), num_rounds=2
        )


def test_a_damaged_run_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    """Nodes would have to train again: that is for a person to decide."""
    out = tmp_path / "run"
    with pytest.raises(Killed):
        strategy(flower.FedAvg(fraction_evaluate=0.0), out, callbacks=[kill_after(3)]).start(
            federation(), initial(), num_rounds=ROUNDS
        )
    records = out / "rounds.jsonl"
    whole = records.read_bytes()
    records.write_bytes(whole.replace(b":", b";", 1))
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    with pytest.raises(RunError, match=r"cannot be resumed \(rounds.jsonl was changed .*nothing in it was changed"):
        strategy(flower.FedAvg(fraction_evaluate=0.0), out).start(federation(), initial(), num_rounds=ROUNDS)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    records.write_bytes(whole)
    strategy(flower.FedAvg(fraction_evaluate=0.0), out).start(federation(), initial(), num_rounds=ROUNDS)
    assert len(read_run(out).records) == ROUNDS

    (out / "clients.csv").write_bytes(b"")
    with pytest.raises(RunError, match=r"holds a finished run"):
        strategy(flower.FedAvg(fraction_evaluate=0.0), out).start(federation(), initial(), num_rounds=ROUNDS)
    assert read_run(out).clients.names.tolist() == [f"site{i}" for i in range(SITES)], "repaired"
    found = filfl.verify(out)
    assert found.ok and found.recomputed == () and "a run on Flower" in str(found.why_not)


def test_nodes_keep_their_client_id_after_a_restart(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        strategy(flower.FedAvg(fraction_evaluate=0.0), tmp_path / "run", callbacks=[kill_after(2)]).start(
            federation(), initial(), num_rounds=4
        )
    grid = federation()
    new = grid.nodes.pop(1000)  # one node left; a new one has a lower node id than all others
    grid.nodes = {5: new, **grid.nodes}
    new.name = "new"
    strategy(flower.FedAvg(fraction_evaluate=0.0), tmp_path / "run").start(grid, initial(), num_rounds=4)
    run = read_run(tmp_path / "run")
    assert run.clients.names.tolist() == [*(f"site{i}" for i in range(SITES)), "new"]
    assert run.records[2]["available"] == [1, 2, 3, 4, 5, 6]


def test_partitions_keep_their_client_id_after_a_restart(tmp_path: Path) -> None:
    app = plain_app()
    add_queries(app, lambda context: (new_net(), batches(context)))
    with pytest.raises(Killed):
        strategy(
            flower.FedAvg(fraction_evaluate=0.0), tmp_path / "run", identity="partition", callbacks=[kill_after(2)]
        ).start(federation(app), initial(), num_rounds=4)
    again = MemoryGrid({7 * i + 3: Node(app, {"partition-id": i}) for i in reversed(range(SITES))})
    strategy(flower.FedAvg(fraction_evaluate=0.0), tmp_path / "run", identity="partition").start(
        again, initial(), num_rounds=4
    )
    run = read_run(tmp_path / "run")
    assert run.clients.names.tolist() == [f"partition-{i}" for i in range(SITES)]
    assert [record["available"] for record in run.records] == [list(range(SITES))] * 4


def test_a_second_node_of_a_partition_is_left_out(tmp_path: Path) -> None:
    app = plain_app()
    add_queries(app, lambda context: (new_net(), batches(context)))
    grid = federation(app)
    grid.nodes[9999] = Node(app, {"partition-id": 2})
    strategy(flower.FedAvg(fraction_evaluate=0.0), tmp_path / "run", identity="partition").start(
        grid, initial(), num_rounds=1
    )
    record = read_run(tmp_path / "run").records[0]
    assert record["available"] == list(range(SITES))
    assert record["notes"] == ["node 9999 is left out: its partition 2 is taken"]


def test_a_damaged_node_registry_raises(tmp_path: Path) -> None:
    (tmp_path / "nodes.json").write_text('[{"node_id": 1')
    with pytest.raises(RunError, match=r"nodes.json is damaged .*; remove it"):
        NodeRegistry(tmp_path / "nodes.json")


@given(st.lists(st.integers(0, 2**64 - 1), unique=True, max_size=20), st.data())
def test_node_numbering(nodes: list[int], data: st.DataObject) -> None:
    """Nodes are numbered 0, 1, 2, ... in the order of registration; a number is given again only if its node left."""
    registry = NodeRegistry()
    for node in nodes:
        registry.add(node, f"n{node}", 1)
    assert [registry.by_node[node].client for node in nodes] == list(range(len(nodes)))
    assert all(registry.by_client[registry.by_node[node].client].node_id == node for node in nodes)
    for number in (-1, max_partition(len(nodes)) + 1):
        assert f"its partition id {number} is not between 0 and " in (registry.add_as(number, 12345, nodes) or "")
    if nodes:
        place = data.draw(st.integers(0, len(nodes) - 1))
        newcomer = max(nodes) + 1
        assert registry.add_as(place, newcomer, nodes) == f"its partition {place} is taken"
        assert registry.add_as(place, newcomer, [node for node in nodes if node != nodes[place]]) is None
        assert registry.by_node[newcomer].client == place and nodes[place] not in registry.by_node


shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)


@given(st.dictionaries(st.text(min_size=1, max_size=5), st.tuples(shapes, st.booleans()), max_size=5))
def test_records_and_weights_have_equal_numbers(made: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    values = {"w": rng.normal(size=(2, 3)).astype(np.float32)}
    for name, (shape, integer) in made.items():
        drawn = rng.normal(size=shape) * 100
        values[f"x{name}"] = np.asarray(drawn, dtype=np.int64 if integer else np.float32)
    arrays = ArrayRecord({name: Array(value) for name, value in values.items()})
    layout = layout_of(arrays)
    weights = to_weights(arrays, layout)
    back = to_arrays(weights, layout)
    assert {name: array.numpy().tolist() for name, array in back.items()} == {k: v.tolist() for k, v in values.items()}
    # Averaging converts integers to float64.
    mean = ArrayRecord({name: Array(value.astype(np.float64)) for name, value in values.items()})
    assert torch.equal(aggregated(mean, layout).vector, weights.vector)
    assert torch.equal(aggregated(mean, layout).integers, weights.integers)


def test_a_mean_of_counters_is_rounded() -> None:
    counters = {"w": Array(np.zeros(1, np.float32)), "n": Array(np.array([3, 7]))}
    mean = ArrayRecord({"w": counters["w"], "n": Array(np.array([2.9999999, 7.4]))})
    assert aggregated(mean, layout_of(ArrayRecord(counters))).integers.tolist() == [3, 7]


def test_a_gradient_is_zero_for_parameters_that_were_not_sent() -> None:
    layout = layout_of(ArrayRecord({"a": Array(np.zeros(2, np.float32)), "b": Array(np.ones(3, np.float32))}))
    gradient = to_gradient(ArrayRecord({"b": Array(np.array([1, 2, 3], np.float32))}), layout)
    assert gradient.tolist() == [0, 0, 1, 2, 3]


def test_the_memory_of_a_strategy_is_stored_and_restored() -> None:
    adam = flower.FedAdam(fraction_evaluate=0.0)
    wrapped = WrappedStrategy(adam)
    assert wrapped.memory() == {}
    leaf = wrapped.strategy
    leaf.m_t, leaf.v_t = {"a/b": np.ones(2), "c": np.zeros((1, 1))}, {"a/b": np.arange(2.0), "c": np.ones((1, 1))}
    leaf.eta = 0.25
    other = WrappedStrategy(flower.FedAdam(fraction_evaluate=0.0))
    other.restore(json_and_back(wrapped.memory()).items())
    np.testing.assert_equal(other.strategy.m_t, leaf.m_t)
    np.testing.assert_equal(other.strategy.v_t, leaf.v_t)
    assert other.strategy.eta == 0.25
    momentum = WrappedStrategy(flower.FedAvgM(fraction_evaluate=0.0))
    momentum.strategy.momentum_vector = [np.full(2, i) for i in range(12)]
    fresh = WrappedStrategy(flower.FedAvgM(fraction_evaluate=0.0))
    fresh.restore(momentum.memory().items())
    np.testing.assert_equal(fresh.strategy.momentum_vector, momentum.strategy.momentum_vector)


def json_and_back(memory: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    text = json.dumps({key: value.tolist() for key, value in memory.items()})
    return {key: torch.tensor(value, dtype=torch.float64) for key, value in json.loads(text).items()}
