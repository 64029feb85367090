"""FilFL around the strategies of Flower, and inside of them: nothing differs from plain Flower but who is chosen."""

import random
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import adaptiveclipping_mod, fixedclipping_mod
from flwr.server import strategy as legacy
from flwr.serverapp import Grid
from flwr.serverapp import strategy as flower
from flwr.supercore.privacy_accounting import SamplingMethod
from sites import SITES, batches, blobs, federation, initial, loss_on_v, new_net, numbers, plain_app

from federation import MemoryGrid
from filfl.errors import ConfigError, PluginError, RunError
from filfl.flower import FilFL, FilteringSet, add_queries
from filfl.runs import read_run

pytestmark = pytest.mark.usefixtures("single_thread")


class Scheduled(flower.FedAvg):
    """Halves the step size in its first round and then keeps it, as a schedule that changes the config in place."""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        if server_round == 2:
            config["lr"] = 0.5 * float(config["lr"])
        return super().configure_train(server_round, arrays, config, grid)


class WithLock(flower.FedAvg):
    """Holds what cannot be copied, and counts its own rounds."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.lock, self.rounds = threading.Lock(), list[int]()

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        with self.lock:
            self.rounds.append(server_round)
        return super().aggregate_train(server_round, replies)


def fixed(inner: flower.Strategy, side: str = "Server", norm: float = 10.0) -> flower.Strategy:
    wrapper = getattr(flower, f"DifferentialPrivacy{side}SideFixedClipping")
    made: flower.Strategy = wrapper(inner, noise_multiplier=0.0, clipping_norm=norm, num_sampled_clients=SITES)
    return made


def adaptive(inner: flower.Strategy, side: str = "Server") -> flower.Strategy:
    wrapper = getattr(flower, f"DifferentialPrivacy{side}SideAdaptiveClipping")
    made: flower.Strategy = wrapper(
        inner, noise_multiplier=0.0, num_sampled_clients=SITES, initial_clipping_norm=10.0, clipped_count_stddev=0.0
    )
    return made


STRATEGIES: dict[str, Callable[[], flower.Strategy]] = {
    "FedAvg": flower.FedAvg,
    "FedProx": lambda: flower.FedProx(proximal_mu=0.5),
    "FedAdam": lambda: flower.FedAdam(eta=0.05),
    "FedYogi": lambda: flower.FedYogi(eta=0.05),
    "FedAdagrad": lambda: flower.FedAdagrad(eta=0.05),
    "FedAvgM": lambda: flower.FedAvgM(server_momentum=0.9),
    "FedMedian": flower.FedMedian,
    "FedTrimmedAvg": lambda: flower.FedTrimmedAvg(beta=0.2),
    "QFedAvg": lambda: flower.QFedAvg(client_learning_rate=0.1),
    "Bulyan": lambda: flower.Bulyan(num_malicious_nodes=0),
    "Krum": lambda: flower.Krum(num_malicious_nodes=1),
    "MultiKrum": lambda: flower.MultiKrum(num_malicious_nodes=1, num_nodes_to_select=3),
    "Scheduled": Scheduled,
    "WithLock": WithLock,
    "DP fixed": lambda: fixed(flower.FedAvg()),
    "DP adaptive": lambda: adaptive(flower.FedAvg()),
    "DP fixed, clients clip": lambda: fixed(flower.FedAvg(), "Client"),
    "DP adaptive, clients clip": lambda: adaptive(flower.FedAvg(), "Client"),
}
CLIPPING = {"DP fixed, clients clip": fixedclipping_mod, "DP adaptive, clients clip": adaptiveclipping_mod}
"""The mods that these strategies need on the clients."""


class InOrder(MemoryGrid):
    """Replies come in the order of the messages, so that sums are the same to the bit."""

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        return super().send_and_receive(list(messages), timeout=timeout)[::-1]


def in_order(app: ClientApp | None = None) -> MemoryGrid:
    return InOrder(federation(app).nodes)


@pytest.fixture
def flower_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower's own sampling keeps the order of the nodes."""
    monkeypatch.setattr(random, "sample", lambda nodes, number: list(nodes)[:number])


def start(strategy: flower.Strategy, rounds: int = 5, grid: MemoryGrid | None = None) -> Any:
    config = ConfigRecord({"lr": 0.1})
    seen: list[float] = []

    def evaluate(t: int, arrays: ArrayRecord) -> MetricRecord:
        seen.append(float(config["lr"]))
        return MetricRecord({"loss": loss_on_v(arrays)})

    result = strategy.start(grid or in_order(), initial(), rounds, train_config=config, evaluate_fn=evaluate)
    return result, seen


def clipping_app(mods: list[Any]) -> ClientApp:
    """The clipping mods of Flower belong to training: they refuse evaluations."""
    app, plain = ClientApp(), plain_app()
    app.train(mods=mods)(lambda message, context: plain(message, context))
    app.evaluate()(lambda message, context: plain(message, context))
    return app


@pytest.mark.usefixtures("flower_in_order")
@pytest.mark.parametrize("name", STRATEGIES)
def test_without_a_filter_and_with_all_nodes_nothing_differs_from_the_strategy_alone(name: str) -> None:
    app = clipping_app([CLIPPING[name]] if name in CLIPPING else [])
    ours, our_steps = start(FilFL(STRATEGIES[name](), filter="none", k=SITES), grid=in_order(app))
    theirs, their_steps = start(STRATEGIES[name](), grid=in_order(app))
    assert numbers(ours.arrays).tobytes() == numbers(theirs.arrays).tobytes()
    for kind in ("train_metrics_clientapp", "evaluate_metrics_clientapp", "evaluate_metrics_serverapp"):
        assert {t: dict(m) for t, m in getattr(ours, kind).items()} == {
            t: dict(m) for t, m in getattr(theirs, kind).items()
        }
    assert our_steps == their_steps == ([0.1, 0.1] + 4 * [0.05] if name == "Scheduled" else 6 * [0.1])


def nodes_asked(grid: MemoryGrid) -> dict[int, list[str]]:
    return {node_id: node.asked for node_id, node in grid.nodes.items()}


def with_mods(mods: list[Any]) -> ClientApp:
    return plain_app(app=ClientApp(mods=mods))


def test_all_wrappers_for_privacy_are_tested() -> None:
    tested = {type(STRATEGIES[name]()).__name__ for name in STRATEGIES if name.startswith("DP ")}
    assert tested == {name for name in vars(flower) if name.startswith("DifferentialPrivacy")}


def test_the_log_names_the_number_of_nodes_once(caplog: pytest.LogCaptureFixture) -> None:
    for k in (0.5, 3):
        FilFL(flower.FedAvg(fraction_train=0.5), filter="none", k=k, out=None).start(federation(), initial(), 1)
    assert "k = 50% of the nodes train" in caplog.text and "k = 3 nodes train" in caplog.text


FILTERED: dict[str, Any] = {"filter": "dgf", "k": 2, "h": 3, "evaluate": loss_on_v, "out": None}


@pytest.mark.parametrize("side", ["Server", "Client"])
@pytest.mark.parametrize("wrapper", [fixed, adaptive])
def test_a_wrapper_inside_and_outside_chooses_the_same_nodes(wrapper: Any, side: str) -> None:
    mods = [] if side == "Server" else [fixedclipping_mod if wrapper is fixed else adaptiveclipping_mod]
    inside, outside, plain = federation(with_mods(mods)), federation(with_mods(mods)), federation()
    ours = FilFL(wrapper(flower.FedAvg(), side), **FILTERED).start(inside, initial(), 5)
    theirs = wrapper(FilFL(flower.FedAvg(), **FILTERED), side).start(outside, initial(), 5)
    FilFL(flower.FedAvg(), **FILTERED).start(plain, initial(), 5)
    assert nodes_asked(inside) == nodes_asked(outside) == nodes_asked(plain)
    np.testing.assert_allclose(numbers(ours.arrays), numbers(theirs.arrays), rtol=1e-5)
    asked = {node.asked.count("train") for node in plain.nodes.values()}
    assert len(asked) > 1, "a filter that keeps all nodes would show nothing"


def test_a_loop_around_filfl_filters_as_its_own_loop() -> None:
    """The base class's start calls the four methods and knows nothing of filfl."""
    ours, theirs = federation(), federation()
    own = FilFL(flower.FedAvg(), **FILTERED)
    other = FilFL(flower.FedAvg(), **FILTERED)
    ours_result = own.start(ours, initial(), 6)
    theirs_result = flower.Strategy.start(other, theirs, initial(), 6)
    assert nodes_asked(ours) == nodes_asked(theirs)
    assert numbers(ours_result.arrays).tobytes() == numbers(theirs_result.arrays).tobytes()


def test_a_loop_around_filfl_stores_the_same_run(tmp_path: Path) -> None:
    for name, loop in (("own", FilFL.start), ("other", flower.Strategy.start)):
        strategy = FilFL(flower.FedAvg(), **{**FILTERED, "out": tmp_path / name})
        loop(strategy, federation(), initial(), 4)
        strategy.close()
    own, other = read_run(tmp_path / "own"), read_run(tmp_path / "other")
    assert own.records == other.records and len(own.records) == 4
    assert own.table == other.table and other.finished
    again = FilFL(flower.FedAvg(), **{**FILTERED, "out": tmp_path / "other"})
    with pytest.raises(RunError, match="finished run of 4 rounds"):
        flower.Strategy.start(again, federation(), initial(), 4)


def test_noise_that_an_outer_strategy_adds_is_in_the_next_round() -> None:
    class Shifted(flower.FedAvg):
        """Adds 1 to everything that the strategy inside returns."""

        def __init__(self, strategy: flower.Strategy) -> None:
            super().__init__()
            self.strategy, self.sent = strategy, list[ArrayRecord]()

        def configure_train(self, server_round: int, arrays: ArrayRecord, config: Any, grid: Any) -> Iterable[Message]:
            self.sent.append(arrays)
            return self.strategy.configure_train(server_round, arrays, config, grid)

        def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
            arrays, metrics = self.strategy.aggregate_train(server_round, replies)
            assert arrays is not None
            return ArrayRecord({name: a + 1 for name, a in arrays.to_torch_state_dict().items()}), metrics

        def configure_evaluate(self, *arguments: Any) -> Iterable[Message]:
            return self.strategy.configure_evaluate(*arguments)

        def aggregate_evaluate(self, *arguments: Any) -> Any:
            return self.strategy.aggregate_evaluate(*arguments)

    got: list[np.ndarray[Any, Any]] = []
    app = plain_app()
    grid = federation(app)
    train = app._registered_funcs["train.default"]

    def spy(message: Message, context: Any) -> Message:
        got.append(numbers(message.content["arrays"]))
        return train(message, context)

    app._registered_funcs["train.default"] = spy
    outer = Shifted(FilFL(flower.FedAvg(), filter="none", k=SITES, out=None))
    outer.start(grid, initial(), 2)
    np.testing.assert_array_equal(got[-1], numbers(outer.sent[1]))


def test_a_wrapper_that_withholds_replies_is_noted(tmp_path: Path) -> None:
    """Flower's DP wrappers skip a round in which a node reports an error."""
    grid = federation()
    strategy = FilFL(flower.FedAvg(fraction_evaluate=0.0), filter="none", k=SITES, out=tmp_path / "run")
    failing = grid.nodes[1000]
    failing.app = plain_app(lambda: 1 / 0)  # type: ignore[arg-type, return-value]
    fixed(strategy).start(grid, initial(), 2)
    strategy.close()
    records = read_run(tmp_path / "run").records
    assert [record["notes"] for record in records] == 2 * [
        ["the replies of this round were not passed on to filfl; the model is unchanged"]
    ]


def test_a_subclass_of_filfl_is_used_by_its_own_loop() -> None:
    class Saving(FilFL):
        saved: list[int]

        def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
            arrays, metrics = super().aggregate_train(server_round, replies)
            self.saved.append(server_round)
            return arrays, metrics

    strategy = Saving(flower.FedAvg(), filter="none", k=2, out=None)
    strategy.saved = []
    strategy.start(federation(), initial(), 3)
    assert strategy.saved == [1, 2, 3]


def test_what_does_not_work_under_another_loop_says_so() -> None:
    options = {"filter.reward": "ensemble", "filter.transport": "logits"}
    inner = FilFL(flower.FedAvg(), k=2, evaluate=FilteringSet(new_net, *blobs(0)), options=options, out=None)
    with pytest.raises(ConfigError, match=r"logits.* needs FilFL.start: .*Put FilFL outermost"):
        fixed(inner).start(federation(), initial(), 1)
    with pytest.raises(ConfigError, match="aggregate_train was called before configure_train"):
        FilFL(flower.FedAvg(), filter="none", out=None).aggregate_train(1, [])


def test_queries_work_under_another_loop() -> None:
    app = plain_app()
    add_queries(app, lambda context: (new_net(), batches(context)))
    inside, outside = federation(app), federation(app)
    options = {**FILTERED, "selection": "power-of-choice"}
    FilFL(fixed(flower.FedAvg()), **options).start(inside, initial(), 4)
    fixed(FilFL(flower.FedAvg(), **options)).start(outside, initial(), 4)
    assert nodes_asked(inside) == nodes_asked(outside)


# The strategy of the user.


def test_the_strategy_object_of_the_user_is_used_and_keeps_its_sampling() -> None:
    mine = WithLock(fraction_train=0.5, min_available_nodes=7, fraction_evaluate=0.0)
    FilFL(mine, filter="none", k=2, out=None).start(federation(), initial(), num_rounds=2)
    assert mine.rounds == [1, 2]
    assert (mine.fraction_train, mine.min_available_nodes, mine.fraction_evaluate) == (0.5, 7, 0.0)


def test_a_start_that_is_not_called_is_said_and_has_a_replacement(caplog: pytest.LogCaptureFixture) -> None:
    class Best(flower.FedAvg):
        def start(self, *arguments: Any, **options: Any) -> Any:
            raise AssertionError("not called")

    seen: list[tuple[int, float]] = []
    FilFL(
        Best(fraction_evaluate=0.0),
        filter="none",
        k=2,
        out=None,
        after_round=lambda t, arrays, metrics: seen.append((t, float(metrics["loss"]) - loss_on_v(arrays))),
    ).start(federation(), initial(), 3, evaluate_fn=lambda t, arrays: MetricRecord({"loss": loss_on_v(arrays)}))
    assert "Best has its own start, which is not called" in caplog.text and "after_round" in caplog.text
    assert seen == [(1, 0.0), (2, 0.0), (3, 0.0)]


def test_no_warning_about_start_for_the_strategies_of_flower(caplog: pytest.LogCaptureFixture) -> None:
    FilFL(fixed(flower.FedAdam()), filter="none", k=2, out=None).start(federation(), initial(), 1)
    assert "own start" not in caplog.text


def test_a_changed_train_config_is_restored_on_resume(tmp_path: Path) -> None:
    class Killed(Exception):
        pass

    def kill(record: Any, state: Any) -> None:
        if record["round"] == 3:
            raise Killed

    steps = []
    for callbacks in ([kill], []):
        config = ConfigRecord({"lr": 0.1})
        strategy = FilFL(Scheduled(), filter="none", k=2, out=tmp_path / "run", callbacks=callbacks)
        with suppress(Killed):
            strategy.start(federation(), initial(), 5, train_config=config)
        steps.append(config["lr"])
    assert steps == [0.05, 0.05]


def test_an_aggregation_that_returns_no_model_is_noted(tmp_path: Path) -> None:
    strategy = FilFL(flower.Bulyan(num_malicious_nodes=1), filter="none", k=4, out=tmp_path / "run")
    result = strategy.start(federation(), initial(), 2)
    assert numbers(result.arrays).tobytes() == numbers(initial()).tobytes()
    note = "Bulyan returned no model from 4 replies; the model is unchanged"
    assert [record["notes"] for record in read_run(tmp_path / "run").records] == [[note], [note]]


def test_a_strategy_that_asks_fewer_nodes_than_selected(tmp_path: Path) -> None:
    class Fewer(flower.FedAvg):
        def configure_train(self, *arguments: Any) -> Iterable[Message]:
            return list(super().configure_train(*arguments))[:2]

    strategy = FilFL(Fewer(fraction_evaluate=0.0), filter="none", k=3, out=tmp_path / "run")
    strategy.start(federation(), initial(), 2)
    for record in read_run(tmp_path / "run").records:
        assert list(record["refused"].values()) == ["Fewer did not ask this node"]


def test_own_names_of_records_reach_the_strategy(tmp_path: Path) -> None:
    app = plain_app()
    train = app._registered_funcs["train.default"]

    def renamed(message: Message, context: Any) -> Message:
        content = train(message, context).content
        more = MetricRecord({"seconds": 1.0})
        return Message(
            RecordDict({"arrays": content["arrays"], "mine": content["metrics"], "more": more}), reply_to=message
        )

    app._registered_funcs["train.default"] = renamed
    seen: list[float] = []

    class Reads(flower.FedAvg):
        def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
            contents = [reply.content for reply in replies]
            seen.extend(float(content["more"]["seconds"]) for content in contents)
            return contents[0]["arrays"], contents[0]["mine"]

    result = FilFL(Reads(fraction_evaluate=0.0), filter="none", k=2, out=None).start(federation(app), initial(), 2)
    assert seen == 4 * [1.0]
    assert "train_loss" in result.train_metrics_clientapp[1]


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        (lambda: flower.FedXgbBagging(), "collects trees and averages no weights"),
        (lambda: legacy.FedAvg(), "take the class of the same name from flwr.serverapp.strategy"),
    ],
)
def test_strategies_that_cannot_be_wrapped_are_refused(strategy: Callable[[], Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        FilFL(strategy(), filter="none")


def test_an_accountant_cannot_be_combined_with_a_filter() -> None:
    accountant: Any = SimpleNamespace(config=SimpleNamespace(sampling_method=SamplingMethod.NO_AMPLIFICATION))
    wrapped = flower.DifferentialPrivacyServerSideFixedClipping(
        flower.FedAvg(), noise_multiplier=1.0, clipping_norm=1.0, num_sampled_clients=2, accountant=accountant
    )
    with pytest.raises(ConfigError, match=r"accountant cannot be combined with a filter"):
        FilFL(wrapped, k=2, evaluate=loss_on_v)


# evaluate, k and waiting.


def test_evaluate_may_have_the_signature_of_flower(tmp_path: Path) -> None:
    def like_flower(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        return MetricRecord({"accuracy": 0.5, "loss": loss_on_v(arrays)})

    found = []
    for name, evaluate in (("loss", loss_on_v), ("flower", like_flower)):
        strategy = FilFL(flower.FedAvg(), **{**FILTERED, "evaluate": evaluate, "out": tmp_path / name})
        strategy.start(federation(), initial(), 3)
        found.append(read_run(tmp_path / name).records)
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("evaluate", "error", "message"),
    [
        (lambda arrays: 1 / 0, PluginError, "evaluate failed for initial_arrays .ZeroDivisionError"),
        (lambda arrays: None, ConfigError, "evaluate must return a loss"),
        (lambda t, arrays: MetricRecord({"accuracy": 0.5}), ConfigError, "needs one of loss, .*got accuracy"),
    ],
)
def test_a_mistake_in_evaluate_shows_before_anybody_trains(evaluate: Any, error: Any, message: str) -> None:
    grid = federation()
    with pytest.raises(error, match=message):
        FilFL(flower.FedAvg(), **{**FILTERED, "evaluate": evaluate}).start(grid, initial(), 3)
    assert not any(node.asked for node in grid.nodes.values())


def test_a_loss_that_is_not_finite_is_said_before_the_first_round(caplog: pytest.LogCaptureFixture) -> None:
    FilFL(flower.FedAvg(), **{**FILTERED, "evaluate": lambda arrays: float("nan")}).start(federation(), initial(), 1)
    assert "evaluate returns nan for initial_arrays" in caplog.text


def test_k_may_be_a_share_of_the_connected_nodes(tmp_path: Path) -> None:
    grid = federation()
    nodes = list(grid.nodes.values())

    def leave(record: Any, state: Any) -> None:
        nodes[0].connected = nodes[1].connected = record["round"] != 1

    strategy = FilFL(flower.FedAvg(), filter="none", k=0.5, out=tmp_path / "run", callbacks=[leave])
    strategy.start(grid, initial(), 3)
    assert [len(record["selected"]) for record in read_run(tmp_path / "run").records] == [3, 2, 3]
    with pytest.raises(ConfigError, match="share of them between 0 and 1"):
        FilFL(flower.FedAvg(), filter="none", k=1.5)


def test_waiting_for_nodes_is_logged_at_once(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(RunError, match="only 2 of the 3 required nodes"):
        FilFL(flower.FedAvg(), filter="none", k=3, wait=0.1, out=None).start(federation(sites=2), initial())
    assert caplog.text.count("waiting for nodes, at most 0.1 s: 2 of 3 are connected") == 1


class InMemoryGrid(MemoryGrid):
    """By its name, the grid of Flower's simulation engine, whose nodes have random ids."""


def test_a_simulation_with_too_few_nodes_fails_at_once() -> None:
    grid = InMemoryGrid(federation(sites=2).nodes)
    with pytest.raises(RunError, match="the simulation has 2 nodes, but 3 are required"):
        FilFL(flower.FedAvg(), filter="none", k=3, wait=600, out=None).start(grid, initial())


def test_clients_of_a_simulation_have_the_numbers_of_their_partitions_without_a_query(tmp_path: Path) -> None:
    found = []
    for name, ids in (("one", [5, 3, 9, 7, 4, 8]), ("two", [30, 90, 10, 70, 50, 20])):
        nodes = dict(zip(ids, federation().nodes.values(), strict=True))
        grid = InMemoryGrid(nodes)
        FilFL(flower.FedAvg(), **{**FILTERED, "out": tmp_path / name}).start(grid, initial(), 3)
        assert {kind for node in nodes.values() for kind in node.asked} == {"train", "evaluate"}
        found.append(read_run(tmp_path / name))
    assert found[0].records == found[1].records
    assert found[0].clients is not None
    assert found[0].clients.names.tolist() == [f"partition-{i}" for i in range(SITES)]


def test_an_app_without_queries_is_asked_three_times_at_most() -> None:
    grid = federation()
    with pytest.raises(RunError, match="no node can answer"):
        FilFL(flower.FedAvg(), filter="none", selection="power-of-choice", k=2, out=None).start(grid, initial())
    assert sum(len(node.asked) for node in grid.nodes.values()) == 3


# Run directories.


def test_a_run_is_stored_in_a_new_directory_by_default(in_an_empty_directory: Path) -> None:
    for _ in range(2):
        FilFL(flower.FedAvg(), filter="none", k=2).start(federation(), initial(), 1)
    found = list((in_an_empty_directory / "runs").iterdir())
    assert len(found) == 2 and all(read_run(directory).finished for directory in found)


def test_a_run_goes_on_without_a_store_where_nothing_can_be_written(
    in_an_empty_directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (in_an_empty_directory / "runs").write_text("a file")
    FilFL(flower.FedAvg(), filter="none", k=2).start(federation(), initial(), 1)
    assert "the run is not stored" in caplog.text


def test_the_home_directory_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    FilFL(flower.FedAvg(), filter="none", k=2, out="~/run").start(federation(), initial(), 1)
    assert read_run(tmp_path / "run").finished


def test_more_rounds_continue_a_finished_run(tmp_path: Path) -> None:
    def run(rounds: int, out: Path) -> Any:
        return FilFL(flower.FedAdam(eta=0.05), **{**FILTERED, "out": out}).start(federation(), initial(), rounds)

    run(3, tmp_path / "run")
    with pytest.raises(RunError, match="finished run of 3 rounds; to continue it, ask for more rounds"):
        run(3, tmp_path / "run")
    continued, once = run(6, tmp_path / "run"), run(6, tmp_path / "once")
    assert read_run(tmp_path / "run").records == read_run(tmp_path / "once").records
    assert numbers(continued.arrays).tobytes() == numbers(once.arrays).tobytes()
    assert read_run(tmp_path / "run").finished


def test_only_a_new_node_causes_another_filtering(tmp_path: Path) -> None:
    grid = federation()
    first, last = grid.nodes[1000], grid.nodes[1000 + 17 * (SITES - 1)]
    last.connected = False

    def come_and_go(record: Any, state: Any) -> None:
        first.connected = record["round"] != 1  # away in round 2, back in round 3
        last.connected = record["round"] >= 3  # new in round 4

    FilFL(flower.FedAvg(), **{**FILTERED, "h": 10, "out": tmp_path / "run"}, callbacks=[come_and_go]).start(
        grid, initial(), 5
    )
    records = read_run(tmp_path / "run").records
    assert [record["num_available"] for record in records] == [5, 4, 5, 6, 6]
    assert [record["did_filter"] for record in records] == [True, False, False, True, False]
