"""FLTrust and Zeno, which use the server's filtering set V: numbers from the papers' formulas, laws, and whole runs."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given
from numpy.typing import NDArray
from torch import nn

import filfl
from filfl.aggregation import Admitted, ServerSide, WithV
from filfl.aggregation.fltrust import FLTrust
from filfl.aggregation.zeno import Zeno
from filfl.algorithms.fedavg import FedAvg
from filfl.config.sections import Training
from filfl.data.split import floored
from filfl.errors import ConfigError, PluginError
from filfl.evaluation import Samples, cross_entropy, mean_loss
from filfl.filtering.filtering_set import FilteringSet
from filfl.simulation.executors.serial import LocalTraining, SerialClients
from filfl.simulation.training_on_v import TrainingOnV
from filfl.weights import FlatModel, Weights

Rows = NDArray[np.float64]
NO_INTEGERS = torch.empty(0, dtype=torch.int64)
KINDS: dict[str, type[WithV]] = {"fltrust": FLTrust, "zeno": Zeno}


def weights(vector: Any) -> Weights:
    return Weights(torch.as_tensor(np.asarray(vector), dtype=torch.float64), NO_INTEGERS)


@dataclass(frozen=True)
class Bowl:
    """A filtering set whose loss is the squared distance to w_t + g_0, so that training on it leads there."""

    w_t: Weights
    g_0: Rows

    def loss(self, w: Weights) -> float:
        return float((w.vector - self.w_t.vector - torch.from_numpy(self.g_0)).square().sum())

    def trained(self, t: int, w_t: Weights) -> Weights:
        return Weights(w_t.vector + torch.from_numpy(self.g_0), w_t.integers)


def combine(kind: WithV, rows: Any, g_0: Any, w_t: Any = None, num_trained: int | None = None) -> NDArray[np.float64]:
    """The new model, less w_t, for clients with these updates and a server with the update g_0."""
    rows, g_0 = np.asarray(rows, dtype=np.float64), np.asarray(g_0, dtype=np.float64)
    start = weights(np.zeros(rows.shape[1]) if w_t is None else w_t)
    updates = [Admitted(weights(start.vector.numpy() + row), 1, 0.0) for row in rows]
    _, w = kind.on(ServerSide(num_trained, Bowl(start, g_0)))(1, {}, start, updates)
    return (w.vector - start.vector).numpy()


# Small numbers, by hand.


def test_fltrust_by_hand() -> None:
    # The cosines with g_0 = (2, 0) are 0.6, 1 and negative. At norm 2: (1.2, 1.6) and (2, 0).
    found = combine(FLTrust(), [[3, 4], [5, 0], [-1, 1]], [2, 0])
    np.testing.assert_allclose(found, [(0.6 * 1.2 + 2) / 1.6, 0.6 * 1.6 / 1.6])


def test_zeno_by_hand() -> None:
    # The losses with g_0 = (1, 0) are 0, 1 and 1.25, the squared norms 1, 4 and 0.25.
    rows = [[1, 0], [2, 0], [0, 0.5]]
    assert combine(Zeno(bad=0.4, rho=0.0), rows, [1, 0]).tolist() == [1.5, 0.0]
    assert combine(Zeno(bad=0.4, rho=0.5), rows, [1, 0]).tolist() == [0.5, 0.25], "-0.5, -3 and -1.375"


def test_fltrust_keeps_the_model_where_nobody_agrees_with_the_server() -> None:
    assert combine(FLTrust(), [[-1, 0], [-2, 3], [0, 1], [0, 0]], [1, 0]).tolist() == [0.0, 0.0]
    assert combine(FLTrust(), [[1, 2]], [0, 0]).tolist() == [0.0, 0.0], "the server learns nothing"
    assert combine(FLTrust(), [[1, 2]], [np.nan, 0]).tolist() == [0.0, 0.0], "the training of the server diverges"


def test_zeno_never_uses_an_update_without_a_finite_loss() -> None:
    class Fragile(Bowl):
        def loss(self, w: Weights) -> float:
            return float("inf") if w.vector[0] > 5 else super().loss(w)

    start = weights([0.0])
    zeno = Zeno(bad=0.0).on(ServerSide(V=Fragile(start, np.ones(1))))
    assert zeno(1, {}, start, [Admitted(weights([x]), 1, 0.0) for x in (1.0, 3.0, 9.0)])[1].vector.tolist() == [2.0]
    assert zeno(1, {}, start, [Admitted(weights([9.0]), 1, 0.0)])[1] is start


def test_statistics_are_averaged_and_not_compared() -> None:
    """The last of three weights stands for a variance of BatchNorm."""
    rows, g_0 = [[3, 4, 100], [5, 0, -20], [-1, 1, 7]], [2, 0, 1000]
    found = combine(FLTrust(), rows, g_0, num_trained=2)
    np.testing.assert_allclose(found, [(0.6 * 1.2 + 2) / 1.6, 0.6, (0.6 * 100 - 20) / 1.6])
    # Without the norm of the statistics, the second is the worst by a penalty that decides alone.
    found = combine(Zeno(bad=0.4, rho=1e6), [[3, 0, 100], [5, 0, -20], [1, 0, 7]], g_0, num_trained=2)
    np.testing.assert_allclose(found, [2, 0, 53.5])


def test_without_a_server_the_error_says_what_is_missing() -> None:
    with pytest.raises(PluginError, match="Zeno needs the server's filtering set"):
        Zeno()(1, {}, weights([0.0]), [Admitted(weights([1.0]), 1, 0.0)])


# Laws. `rows` are small whole numbers.

small = st.integers(-8, 8)
names = st.sampled_from(sorted(KINDS))
befores = st.sampled_from(["none", "nnm", "bucketing"])


@st.composite
def problems(draw: Callable[..., Any], at_least: int = 1) -> tuple[Rows, Rows]:
    """Updates of clients and of the server."""
    d = draw(st.integers(1, 6))
    row = st.lists(small, min_size=d, max_size=d)
    return np.array(draw(st.lists(row, min_size=at_least, max_size=9)), dtype=np.float64), np.array(
        draw(row), dtype=np.float64
    )


@given(name=names, before=st.sampled_from(["none", "nnm"]), problem=problems(), shift=small)
def test_the_order_of_the_clients_and_the_model_do_not_matter(
    name: str, before: Any, problem: tuple[Rows, Rows], shift: int
) -> None:
    rows, g_0 = problem
    rows = rows + np.random.default_rng(0).normal(size=rows.shape) * 1e-3  # without ties
    kind = KINDS[name](before=before)
    found = combine(kind, rows, g_0)
    np.testing.assert_allclose(combine(kind, rows[::-1], g_0), found, atol=1e-9)
    np.testing.assert_allclose(combine(kind, rows, g_0, w_t=np.full(rows.shape[1], float(shift))), found, atol=1e-9)


@given(name=names, before=befores, problem=problems(), bad=st.sampled_from([np.nan, np.inf]), at=st.integers(0, 9))
def test_an_update_that_is_not_finite_changes_nothing(
    name: str, before: Any, problem: tuple[Rows, Rows], bad: float, at: int
) -> None:
    rows, g_0 = problem
    kind = KINDS[name](before=before)
    with_bad = np.insert(rows, min(at, len(rows)), bad, axis=0)
    assert combine(kind, with_bad, g_0).tolist() == combine(kind, rows, g_0).tolist()
    assert combine(kind, rows[:1] * np.nan, g_0).tolist() == [0.0] * rows.shape[1]


@given(before=befores, problem=problems(), size=st.sampled_from([1.0, 1e6, 1e30]), huge=st.integers(0, 9))
def test_fltrust_never_moves_further_than_the_server(
    before: Any, problem: tuple[Rows, Rows], size: float, huge: int
) -> None:
    rows, g_0 = problem
    rows[:huge] *= size
    assert np.linalg.norm(combine(FLTrust(before=before), rows, g_0)) <= np.linalg.norm(g_0) * (1 + 1e-9)


@given(problem=problems(at_least=2))
def test_a_client_that_disagrees_with_the_server_has_no_influence(problem: tuple[Rows, Rows]) -> None:
    rows, g_0 = problem
    agree = rows @ g_0 > 0
    expected = combine(FLTrust(), rows[agree], g_0) if agree.any() else np.zeros(len(g_0))
    np.testing.assert_allclose(combine(FLTrust(), rows, g_0), expected, atol=1e-12)


@given(problem=problems(), before=st.sampled_from(["none", "nnm"]))
def test_zeno_with_no_bad_clients_is_the_mean(problem: tuple[Rows, Rows], before: Any) -> None:
    rows, g_0 = problem
    np.testing.assert_allclose(combine(Zeno(bad=0.0, before=before), rows, g_0), rows.mean(axis=0), atol=1e-12)


@given(problem=problems(at_least=3), size=st.sampled_from([1e3, 1e12, 1e30]), before=st.sampled_from(["none", "nnm"]))
def test_huge_updates_never_decide_in_zeno(problem: tuple[Rows, Rows], size: float, before: Any) -> None:
    good, g_0 = problem
    f = (len(good) - 1) // 2
    rows = np.concatenate([np.full((f, good.shape[1]), size), good])
    bad = f / len(rows) + 1e-6
    assert floored(bad, len(rows)) == f
    assert np.abs(combine(Zeno(bad=bad, before=before), rows, g_0)).max() <= 8


# The server's own training.


def linear() -> nn.Module:
    return nn.Linear(4, 3)


@pytest.mark.usefixtures("single_thread")
def test_the_server_trains_like_a_client(blobs: filfl.FederatedData) -> None:
    """With one batch per step, the order of the samples does not matter, and a client with the samples of V sends what
    the server computes."""
    net = FlatModel(linear(), torch.device("cpu"))
    training = LocalTraining(0, FedAvg(), Training(steps=3, batch=1000, lr=0.2, momentum=0.5, weight_decay=0.1))
    client = SerialClients(blobs, net, cross_entropy, training)
    w_t = net.weights()
    samples = client.samples.part(*client.span(2, "train"))
    V = FilteringSet.of(net, samples, cross_entropy)
    on_V = TrainingOnV(V, training)
    update = client.train(5, [2], w_t)[2]
    assert not isinstance(update, filfl.core.clients.Failure)
    assert isinstance(update.weights, Weights)
    torch.testing.assert_close(on_V.trained(5, w_t).vector, update.weights.vector)
    assert on_V.loss(w_t) == mean_loss(net, w_t, samples, cross_entropy)


@pytest.mark.usefixtures("single_thread")
def test_the_server_draws_batches_of_its_own(blobs: filfl.FederatedData) -> None:
    net = FlatModel(linear(), torch.device("cpu"))
    training = LocalTraining(0, FedAvg(), Training(batch=2))
    client = SerialClients(blobs, net, cross_entropy, training)
    w_t = net.weights()
    samples = client.samples.part(*client.span(0, "train"))
    on_V = TrainingOnV(FilteringSet.of(net, samples, cross_entropy), training)
    server, again, later = (on_V.trained(t, w_t).vector for t in (1, 1, 2))
    update = client.train(1, [0], w_t)[0]
    assert torch.equal(server, again) and not torch.equal(server, later)
    assert isinstance(update, filfl.core.clients.Update) and isinstance(update.weights, Weights)
    assert not torch.equal(server, update.weights.vector)


def test_a_model_that_cannot_train_on_V_gets_a_clear_error() -> None:
    net = FlatModel(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), torch.device("cpu"))
    samples = Samples(torch.ones(1, 2), torch.tensor([0]), torch.tensor(1.0), torch.tensor(0.0))
    training = LocalTraining(0, FedAvg(), Training())
    with pytest.raises(PluginError, match="training on the server's filtering set raised ValueError"):
        TrainingOnV(FilteringSet.of(net, samples, cross_entropy), training).trained(1, net.weights())


# Whole runs.

RUN: dict[str, Any] = {
    "rounds": 20,
    "data.clients": 20,
    "data.alpha": 5.0,
    "model.hidden": [24],
    "filter.name": "none",
    "selection.k": 10,
    "training.lr": 0.3,
    "evaluate.every": 20,
}
ATTACKED = {"attack.name": "sign-flip", "attack.share": 0.3}


@pytest.fixture(scope="module")
def accuracy() -> Callable[..., float]:
    def final(**changes: Any) -> float:
        found = filfl.simulate({**RUN, **changes}, progress=False).accuracy[-1]
        assert found is not None
        return found

    return final


def test_reversed_updates_do_not_matter_with_fltrust_and_zeno(accuracy: Callable[..., float]) -> None:
    clean, attacked = accuracy(), accuracy(**ATTACKED)
    assert attacked < clean - 0.1, "the attack works"
    for name in KINDS:
        defended = accuracy(**ATTACKED, **{"aggregation.name": name, "aggregation.bad": 0.4})
        assert defended > clean - 0.04, name


@pytest.mark.parametrize("name", KINDS)
def test_a_resumed_or_verified_run_gives_the_same_bytes(name: str, tmp_path: Path, small: dict[str, Any]) -> None:
    config = {**small, "aggregation.name": name, "aggregation.before": "bucketing", "execution.mode": "serial"}

    class Stop(Exception):
        pass

    def stop(record: Any, state: Any) -> None:
        if record["round"] == 2:
            raise Stop

    filfl.simulate(config, out=tmp_path / "whole", progress=False)
    with pytest.raises(Stop):
        filfl.simulate(config, out=tmp_path / "resumed", callbacks=[stop], progress=False)
    filfl.simulate(config, out=tmp_path / "resumed", resume=True, progress=False)
    for file in ("rounds.jsonl", "model.safetensors"):
        assert (tmp_path / "whole" / file).read_bytes() == (tmp_path / "resumed" / file).read_bytes()
    verified = filfl.verify(tmp_path / "whole", rounds=4, say=lambda text: None)
    assert verified.ok and len(verified.recomputed) == 4


def test_worker_processes_give_the_same_records(small: dict[str, Any]) -> None:
    """The server trains in the main process, on the network that evaluates V."""
    config = {**small, "rounds": 2, "aggregation.name": "fltrust"}
    serial, parallel = (
        filfl.simulate({**config, "execution.mode": mode, "execution.workers": 1}, progress=False)
        for mode in ("serial", "processes")
    )
    assert serial.records == parallel.records


@pytest.mark.parametrize("name", KINDS)
def test_attackers_can_know_the_aggregation(name: str, small: dict[str, Any]) -> None:
    """They try what they send with the aggregation of the server, its filtering set included."""
    config = {**small, "rounds": 1, "aggregation.name": name, "attack.name": "alie", "attack.share": 0.5}
    plain, knowing = (
        filfl.simulate({**config, "attack.optimal": optimal}, progress=False).records for optimal in (False, True)
    )
    assert plain != knowing


def test_the_filtering_set_is_that_of_a_filter() -> None:
    """So that a comparison with a filter is fair: the same samples, reported in the summary."""
    config = {**RUN, "rounds": 1, "filter.size": 30}
    summaries = [
        filfl.simulate({**config, **changes}, progress=False).summary
        for changes in ({"aggregation.name": "zeno"}, {"filter.name": "dgf"}, {})
    ]
    assert summaries[0]["filtering_set"] == summaries[1]["filtering_set"] == "30 samples of the server"
    assert "filtering_set" not in summaries[2]


def test_a_filtering_set_from_all_clients_is_warned_about(blobs: filfl.FederatedData) -> None:
    for changes, warned in (({}, False), ({"aggregation.name": "fltrust"}, True)):
        said: list[str] = []
        filfl.simulate({"rounds": 1, "filter.name": "none", **changes}, blobs, say=said.append, progress=False)
        assert any("it has samples of all clients" in text for text in said) is warned


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"filter.data": "federated"}, 'needs a filtering set on the server, but that of filter.data = "federated"'),
        ({"filter.data": "variable"}, 'is on clients; set filter.data to "server" or "file"'),
        ({"data.filtering": 0.0}, "filtering set is empty; raise data.filtering"),
        ({"filter.size": 10**6}, "filter.size must be between 1 and the 1[0-9]+ samples"),
    ],
)
def test_a_config_without_V_on_the_server_is_refused(name: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        filfl.simulate({"rounds": 1, "filter.name": "none", "aggregation.name": name, **changes})


def test_a_filter_and_an_aggregation_share_one_message_about_an_empty_filtering_set() -> None:
    with pytest.raises(ConfigError) as refused:
        filfl.simulate({"rounds": 1, "aggregation.name": "zeno", "data.filtering": 0.0})
    assert len(refused.value.problems) == 1
    assert refused.value.problems[0].endswith("or set filter.name to none and aggregation.name to mean")
