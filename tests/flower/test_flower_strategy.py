"""FilFL as a Flower strategy: rounds, wrapped strategies, queries, and invalid settings."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp import strategy as flower
from sites import FEATURES, SITES, batches, blobs, federation, initial, loss_on_v, new_net, numbers, plain_app
from torch import nn

from federation import MemoryGrid
from filfl.errors import ConfigError, PluginError, RunError
from filfl.flower import FilFL, FilteringSet, add_queries
from filfl.runs import read_run

pytestmark = pytest.mark.usefixtures("single_thread")


class Site:
    """A minimal Context for `batches`."""

    def __init__(self, site: int) -> None:
        self.node_config = {"partition-id": site}


def loss_at(arrays: ArrayRecord, batches: Any) -> float:
    model = new_net()
    model.load_state_dict(arrays.to_torch_state_dict())
    x, y = torch.cat([batch["img"] for batch in batches]), torch.cat([batch["label"] for batch in batches])
    return nn.functional.cross_entropy(model(x), y).item()


def quiet(**options: Any) -> flower.FedAvg:
    return flower.FedAvg(fraction_evaluate=1.0, **options)


def records(directory: Path) -> list[dict[str, Any]]:
    return read_run(directory).records


def test_a_filter_round_trains_all_nodes_once_and_averages_the_selected(tmp_path: Path) -> None:
    grid = federation()
    FilFL(flower.FedAvg(fraction_evaluate=0.0), k=2, h=2, evaluate=loss_on_v, out=tmp_path / "run").start(
        grid, initial(), num_rounds=3
    )
    rounds = records(tmp_path / "run")
    assert [record["did_filter"] for record in rounds] == [True, False, True]
    asked = sum(node.asked.count("train") for node in grid.nodes.values())
    assert asked == SITES + 2 + SITES
    for record in rounds:
        assert record["available"] == list(range(SITES))
        assert set(record["selected"]) <= set(record["filtered"]) and len(record["selected"]) == 2
    # Sites 1, 3 and 5 have wrong labels.
    assert set(rounds[-1]["filtered"]) <= {0, 2, 4}


def test_a_filtering_set_equals_an_evaluate_function(tmp_path: Path) -> None:
    found = []
    for i, evaluate in enumerate([loss_on_v, FilteringSet(new_net, *blobs(0))]):
        out = tmp_path / str(i)
        FilFL(flower.FedAvg(fraction_evaluate=0.0), k=2, h=2, evaluate=evaluate, out=out).start(
            federation(), initial(), num_rounds=4
        )
        found.append([(r["filtered"], r["selected"], round(r["reward_filtered"] or 0, 4)) for r in records(out)])
    assert found[0] == found[1]
    assert FilteringSet(new_net, *blobs(0))(initial()) == pytest.approx(loss_on_v(initial()))


def test_filtering_with_the_ensemble_reward(tmp_path: Path) -> None:
    FilFL(
        flower.FedAvg(fraction_evaluate=0.0),
        filter="local-search",
        k=2,
        evaluate=FilteringSet(new_net, *blobs(0)),
        options={"filter.reward": "ensemble"},
        out=tmp_path / "run",
    ).start(federation(), initial(), num_rounds=2)
    first = records(tmp_path / "run")[0]
    assert first["surrogate_filtered"] >= first["surrogate_all"]


@pytest.mark.parametrize("selection", ["power-of-choice", "divfl"])
def test_selections_send_queries(selection: str, tmp_path: Path) -> None:
    app = plain_app()
    add_queries(app, lambda context: (new_net(), batches(context)))
    grid = federation(app)
    FilFL(quiet(), filter="none", selection=selection, k=2, out=tmp_path / "run").start(grid, initial(), num_rounds=2)
    question = {"power-of-choice": "query.filfl_loss", "divfl": "query.filfl_gradient"}[selection]
    assert all(node.asked.count(question) == 2 for node in grid.nodes.values())
    assert all(node.asked.count("query.filfl_hello") == 1 for node in grid.nodes.values())
    if selection == "power-of-choice":
        losses = [loss_at(initial(), batches(Site(site))) for site in range(SITES)]
        assert set(records(tmp_path / "run")[0]["selected"]) == set(np.argsort(losses)[-2:].tolist())
    sizes = read_run(tmp_path / "run").clients.num_train.tolist()
    assert sizes == [20 + 10 * site for site in range(SITES)]


@pytest.mark.parametrize("data", ["variable", "federated"])
def test_only_trusted_nodes_judge(data: str, tmp_path: Path) -> None:
    app = plain_app(new_net)
    add_queries(app, lambda context: (new_net(), batches(context), batches(context)))
    grid = federation(app)
    names = sorted(node.name for node in grid.nodes.values())
    strategy = FilFL(quiet(), k=2, h=1, trusted=names[:2], options={"filter.data": data}, out=tmp_path / "run")
    strategy.start(grid, initial(), num_rounds=2)
    table = read_run(tmp_path / "run").clients
    assert table is not None
    judges = {str(table.names[k]) for record in records(tmp_path / "run") for k in record["judges"]}
    assert judges and judges <= set(names[:2])


def test_a_selection_without_add_queries_raises_with_advice() -> None:
    with pytest.raises(RunError, match=r"no node can answer .*add filfl.flower.add_queries"):
        FilFL(quiet(), filter="none", selection="power-of-choice", k=2).start(federation(), initial())


def test_random_selection_sends_no_queries() -> None:
    grid = federation()
    FilFL(quiet(), filter="none", k=2).start(grid, initial(), num_rounds=2)
    assert {kind for node in grid.nodes.values() for kind in node.asked} == {"train", "evaluate"}


def test_fraction_evaluate_is_respected_and_reproducible() -> None:
    grid = federation()
    FilFL(flower.FedAvg(fraction_evaluate=0.5), filter="none", k=2).start(grid, initial(), num_rounds=4)
    assert sum(node.asked.count("evaluate") for node in grid.nodes.values()) == 4 * 3
    again = federation()
    FilFL(flower.FedAvg(fraction_evaluate=0.5), filter="none", k=2).start(again, initial(), num_rounds=4)
    assert [node.asked for node in grid.nodes.values()] == [node.asked for node in again.nodes.values()]


def test_integer_buffers_keep_their_dtype(tmp_path: Path) -> None:
    def with_buffers() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.BatchNorm1d(FEATURES), nn.Linear(FEATURES, 3))

    grid = federation(plain_app(with_buffers))
    result = FilFL(flower.FedAvg(fraction_evaluate=0.0), filter="none", k=SITES).start(
        grid, initial(with_buffers), num_rounds=2
    )
    assert result.arrays["0.num_batches_tracked"].dtype == "int64"
    with_buffers().load_state_dict(result.arrays.to_torch_state_dict())


def test_the_result_of_evaluate_fn_is_recorded(tmp_path: Path) -> None:
    def test(t: int, arrays: ArrayRecord) -> MetricRecord:
        return MetricRecord({"accuracy": t / 10, "loss": 1.0, "f1": 0.5})

    result = FilFL(flower.FedAvg(fraction_evaluate=0.0), filter="none", k=2, out=tmp_path / "run").start(
        federation(), initial(), num_rounds=2, evaluate_fn=test
    )
    assert sorted(result.evaluate_metrics_serverapp) == [0, 1, 2]
    assert [record["test_accuracy"] for record in records(tmp_path / "run")] == [0.1, 0.2]
    assert records(tmp_path / "run")[1]["metrics"] == {"accuracy": 0.2, "loss": 1.0, "f1": 0.5}
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["rounds"] == 2 and summary["final_accuracy"] == pytest.approx(0.15)
    assert read_run(tmp_path / "run").clients.names.tolist() == [f"site{i}" for i in range(SITES)]
    config = read_run(tmp_path / "run").table
    assert (config["aggregation"]["strategy"], config["selection"]["k"], config["rounds"]) == ("FedAvg", 2, 2)


def test_callbacks_get_every_round() -> None:
    seen = []
    FilFL(quiet(), filter="none", k=2, callbacks=[lambda record, state: seen.append(record["round"])]).start(
        federation(), initial(), num_rounds=3
    )
    assert seen == [1, 2, 3]


def test_own_filter_and_selection() -> None:
    from filfl import Filtering

    result = FilFL(
        flower.FedAvg(fraction_evaluate=0.0),
        filter=lambda clients, reward, rng: Filtering(kept=tuple(sorted(clients)[:3])),
        selection=lambda pool, k, ask, rng: pool[:k].tolist(),
        k=1,
        evaluate=loss_on_v,
    ).start(federation(), initial(), num_rounds=2)
    alone = federation(sites=1)
    only = flower.FedAvg(fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=1).start(
        alone, initial(), num_rounds=2
    )
    np.testing.assert_allclose(numbers(result.arrays), numbers(only.arrays), rtol=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": 0}, "selection.k must be"),
        ({"filter": "dfg"}, "filter.name"),
        ({"selection": "powerofchoice"}, "selection.name"),
        ({}, r"needs evaluate"),
        ({"evaluate": loss_on_v, "options": {"filter.reward": "ensemble"}}, "FilteringSet"),
        ({"filter": "none", "identity": "name"}, "identity must be"),
        ({"filter": "none", "options": {"selection.dd": 3}}, "selection.dd"),
    ],
)
def test_invalid_options_raise_with_their_key(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        FilFL(flower.FedAvg(fraction_evaluate=0.0), **options)


def test_a_strategy_that_does_not_average_models_is_refused() -> None:
    class Own(flower.Strategy):
        configure_train = aggregate_train = configure_evaluate = aggregate_evaluate = summary = lambda self: None

    with pytest.raises(ConfigError, match="FedAvg, FedProx, FedAdam"):
        FilFL(Own(), filter="none")


def test_arrays_that_do_not_fit_the_filtering_set_are_refused() -> None:
    filtering_set = FilteringSet(lambda: nn.Linear(2, 2), torch.zeros(4, 2), torch.zeros(4, dtype=torch.int64))
    with pytest.raises(PluginError, match=r"initial_arrays do not fit .*weight has shape"):
        FilFL(quiet(), evaluate=filtering_set).start(federation(), initial())
    with pytest.raises(PluginError, match="do not fit the network"):
        filtering_set(initial())


def test_too_few_nodes_raise_after_the_wait() -> None:
    with pytest.raises(
        RunError, match=r"only 2 of the 3 required nodes are connected after 0\.2 s; start more SuperNodes"
    ):
        FilFL(quiet(), filter="none", k=3, wait=0.2).start(federation(sites=2), initial())
    assert isinstance(
        FilFL(quiet(), filter="none", k=3, min_nodes=1, wait=0.2).start(federation(sites=2), initial()).arrays,
        ArrayRecord,
    )


def test_the_strategy_object_of_the_user_is_not_changed() -> None:
    mine = flower.FedAvg(fraction_train=0.5, min_available_nodes=7)
    FilFL(mine, filter="none", k=2).start(federation(), initial(), num_rounds=1)
    assert (mine.fraction_train, mine.min_available_nodes) == (0.5, 7)


def test_the_grid_proxy_lists_only_the_given_nodes() -> None:
    from filfl.flower.wrapped_strategy import OnlyNodes

    grid = federation()
    assert isinstance(grid, MemoryGrid) and list(OnlyNodes([1017], grid).get_node_ids()) == [1017]
    assert list(OnlyNodes([1017], grid).get_nodes()) == list(grid.get_nodes())


@pytest.mark.parametrize("key", ["aggregation.name", "availability.name", "attack.share"])
def test_options_that_the_strategy_and_the_nodes_decide_are_refused(key: str) -> None:
    with pytest.raises(ConfigError, match=f"{key} has no effect on Flower"):
        FilFL(flower.FedAvg(), filter="none", options={key: "median"})


def test_training_samples_that_the_server_does_not_have_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"evaluate\.train_samples has no effect on Flower"):
        FilFL(flower.FedAvg(), filter="none", options={"evaluate.train_samples": 10})
