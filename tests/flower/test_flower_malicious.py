"""ClientApps that lie in ways that only show over several rounds, or below the checks of a message's form.

None of them ends the run; none takes the model unseen. What a filter cannot stop is shown with what stops it.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import strategy as flower
from hostile_nodes import altered, assert_silent
from sites import SITES, blobs, federation, initial, new_net, numbers, plain_app
from torch.nn.functional import cross_entropy

from federation import MemoryGrid, Node
from filfl.flower import FilFL, FilteringSet, keep_weights
from filfl.flower.run import BETWEEN

pytestmark = pytest.mark.usefixtures("single_thread")
LIAR = 1000 + 17 * 2


# Bytes that numpy's two ways of reading understand differently, or that ask for more memory than there is.


def npy(data: bytes, descr: str, shape: tuple[Any, ...], version: tuple[int, int] = (1, 0)) -> bytes:
    """An npy file with any header."""
    header = repr({"descr": descr, "fortran_order": False, "shape": shape}).encode() + b"\n"
    length = len(header).to_bytes(2 if version == (1, 0) else 4, "little")
    return b"\x93NUMPY" + bytes(version) + length + header + data


def bias(change: Callable[[Array, bytes], Array]) -> Callable[[Message], Message]:
    """Replace the array "bias" of a reply. `change` gets it, and its numbers as bytes."""

    def tamper(reply: Message) -> Message:
        if reply.has_content() and reply.content.array_records:
            arrays = reply.content["arrays"]
            changed = {**arrays, "bias": change(arrays["bias"], arrays["bias"].numpy().tobytes())}
            reply.content = RecordDict({**reply.content, "arrays": ArrayRecord(changed)})
        return reply

    return tamper


def with_bytes(array: Array, data: bytes, **fields: Any) -> Array:
    return Array(**{"dtype": array.dtype, "shape": array.shape, "stype": array.stype, **fields}, data=data)


UNREADABLE: dict[str, tuple[Callable[[Message], Message], str]] = {
    "a shape of -1": (bias(lambda a, data: with_bytes(a, npy(data, "<f4", (-1,)))), r"has the shape \(-1,\)"),
    "a shape of True": (bias(lambda a, data: with_bytes(a, npy(data, "<f4", (3, True)))), "cannot be read"),
    "36 TB": (bias(lambda a, data: with_bytes(a, npy(data, "<f4", (10**13,), (2, 0)))), "cannot be read"),
    "36 TB in other byte order": (bias(lambda a, data: with_bytes(a, npy(data, ">f4", (10**13,)))), "cannot be read"),
    "complex numbers": (bias(lambda a, data: with_bytes(a, npy(2 * data, "<c8", (3,)))), "dtype torch.complex64"),
    "truth values": (bias(lambda a, data: with_bytes(a, npy(data, "|b1", (3,)))), "dtype torch.bool"),
    "dates": (bias(lambda a, data: with_bytes(a, npy(2 * data, "<M8[s]", (3,)))), "cannot be read"),
    "nothing": (bias(lambda a, data: with_bytes(a, b"")), "cannot be read"),
    "another serialization": (bias(lambda a, data: with_bytes(a, a.data, stype="pickle")), "cannot be read"),
}


@pytest.mark.parametrize("what", UNREADABLE)
def test_bytes_that_cannot_be_averaged_are_refused(what: str) -> None:
    assert_silent(*UNREADABLE[what], lambda reply: None)


LABELS = {
    "type": lambda a, data: with_bytes(a, a.data, dtype="\x1b[2Jfloat64"),
    "shape": lambda a, data: with_bytes(a, a.data, shape=(10**12,)),
    "version of the format": lambda a, data: with_bytes(a, npy(data, "<f4", (3,), (3, 0))),
    "bytes after the end": lambda a, data: with_bytes(a, a.data + 1000 * b"x"),
}


@pytest.mark.parametrize("label", LABELS)
@pytest.mark.parametrize("strategy", [flower.FedAvg, flower.FedMedian])
def test_wrong_labels_of_right_numbers_change_nothing(label: str, strategy: Any) -> None:
    found = []
    for tamper in (bias(LABELS[label]), lambda reply: reply):
        grid = federation()
        grid.nodes[LIAR].tamper = tamper
        found.append(numbers(FilFL(strategy(), filter="none", k=SITES, out=None).start(grid, initial(), 2).arrays))
    np.testing.assert_array_equal(*found)


# Metrics of training, by which a strategy may weight.


@pytest.mark.parametrize("loss", [1e308, -1e308, 1e30, float("inf"), float("nan"), -5.0])
def test_a_false_train_loss_does_not_take_a_strategy_that_weights_by_it(loss: float) -> None:
    """QFedAvg: with such a loss the model was NaN, or that of this client."""
    found, losses, notes = [], [], []
    for lie in (loss, None):  # None: it reports no loss, and gets the mean of the others
        grid, records = federation(), list[dict[str, Any]]()
        grid.nodes[LIAR].tamper = altered(train_loss=lie)
        strategy = FilFL(
            flower.QFedAvg(client_learning_rate=0.1),
            filter="none",
            k=SITES,
            out=None,
            callbacks=[lambda record, state, records=records: records.append(record)],
        )
        result = strategy.start(grid, initial(), 2)
        found.append(numbers(result.arrays))
        losses.append(result.train_metrics_clientapp[2]["train_loss"])
        notes.append(records[0]["notes"])
    np.testing.assert_array_equal(*found)
    assert losses[0] == losses[1]
    assert "metrics of 1 of 6 clients are not credible and left out: train_loss" in notes[0]
    assert not any("credible" in note for note in notes[1])


def test_a_model_that_is_not_finite_is_not_used() -> None:
    class Overflows(flower.FedAvg):
        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            arrays, metrics = super().aggregate_train(server_round, replies)
            assert arrays is not None
            if server_round == 2:
                arrays = ArrayRecord({name: Array(a.numpy() * np.float32(np.nan)) for name, a in arrays.items()})
            return arrays, metrics

    records: list[dict[str, Any]] = []
    callbacks = [lambda record, state: records.append(record)]
    result = FilFL(Overflows(), filter="none", k=SITES, out=None, callbacks=callbacks).start(federation(), initial(), 3)
    assert np.isfinite(numbers(result.arrays)).all()
    note = "Overflows returned a model that is not finite from 6 replies; the model is unchanged"
    assert [note in record["notes"] for record in records] == [False, True, False]


# Behaviour over rounds. Eight nodes with right labels, of which the last has the most samples and lies.

NODES, K = 8, 3
V, TEST = blobs(77, 60), blobs(5, 300)


class Dishonest:
    """A ClientApp whose updates are `factor(call, filters)` times those that it trained."""

    def __init__(self, factor: Callable[[int, bool], float]) -> None:
        self.factor, self.honest, self.calls, self.filters = factor, plain_app(), 0, False

    def __call__(self, message: Message, context: Context) -> Message:
        reply = self.honest(message, context)
        if message.metadata.message_type != "train":
            return reply
        self.calls += 1
        start = message.content["arrays"]
        factor = self.factor(self.calls, self.filters)
        arrays = {
            name: Array((start[name].numpy() + factor * (array.numpy() - start[name].numpy())).astype(np.float32))
            for name, array in reply.content["arrays"].items()
        }
        reply.content = RecordDict({**reply.content, "arrays": ArrayRecord(arrays)})
        return reply


class Tells(FilFL):
    """Tells the dishonest client whether a round filters. A real one would see that all nodes train."""

    dishonest: Dishonest

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Any) -> Any:
        messages = list(super().configure_train(server_round, arrays, config, grid))
        self.dishonest.filters = len(messages) == NODES
        return messages


def loss_of(arrays: Mapping[str, Any]) -> float:
    net = new_net()
    net.load_state_dict(ArrayRecord(dict(arrays)).to_torch_state_dict())
    return cross_entropy(net(TEST[0]), TEST[1]).item()


def lied_to(
    factor: Callable[[int, bool], float], strategy: flower.Strategy | None = None, **options: Any
) -> tuple[float, list[dict[str, Any]]]:
    """The loss of the model after 12 rounds, and the records."""
    app, records = plain_app(), list[dict[str, Any]]()
    grid = MemoryGrid({1000 + 17 * i: Node(app, {"partition-id": 2 * i}) for i in range(NODES)})
    dishonest = Dishonest(factor)
    grid.nodes[1000 + 17 * (NODES - 1)].app = dishonest  # type: ignore[assignment]
    options = {"filter": "prune", "h": 5, "evaluate": FilteringSet(new_net, *V), **options}
    filfl = Tells(
        strategy or flower.FedAvg(fraction_evaluate=0.0),
        k=K,
        out=None,
        callbacks=[lambda record, state: records.append(record)],
        **options,
    )
    filfl.dishonest = dishonest
    return loss_of(filfl.start(grid, initial(), 12).arrays), records


def times_selected(records: list[dict[str, Any]]) -> int:
    return sum(NODES - 1 in record["selected"] for record in records)


def risen(records: list[dict[str, Any]]) -> list[int]:
    """The rounds whose record says that the model has become worse since the last filtering."""
    return [record["round"] for record in records if any(note.startswith(BETWEEN) for note in record["notes"])]


HONEST = 0.4
"""Above the loss after twelve rounds with honest nodes."""


def test_an_honest_federation_learns_and_nothing_is_noted() -> None:
    loss, records = lied_to(lambda call, filters: 1.0)
    assert loss < HONEST and times_selected(records) > 0 and not risen(records)


BEHAVIOURS: dict[str, Callable[[int, bool], float]] = {
    "does not train": lambda call, filters: 0.0,
    "goes backwards": lambda call, filters: -1.0,
    "goes backwards, ten times as far": lambda call, filters: -10.0,
    "twice as far in every round": lambda call, filters: -(2.0**call),
}


@pytest.mark.parametrize("behaviour", BEHAVIOURS)
def test_a_node_that_always_lies_is_never_selected(behaviour: str) -> None:
    loss, records = lied_to(BEHAVIOURS[behaviour])
    assert loss < HONEST and times_selected(records) == 0


def between(call: int, filters: bool) -> float:
    """Honest where it is judged, and in the first of two parts of a run."""
    return 1.0 if filters else -10.0


def test_a_node_that_lies_between_filterings_is_not_stopped_but_noted() -> None:
    loss, records = lied_to(between)
    assert loss > 10 and times_selected(records) > 0
    assert risen(records) == [record["round"] for record in records if record["did_filter"]][1:]


def test_filtering_in_every_round_stops_it() -> None:
    loss, records = lied_to(between, h=1)
    assert loss < HONEST and not risen(records)


def test_a_robust_strategy_stops_it() -> None:
    loss, records = lied_to(between, flower.FedMedian(fraction_evaluate=0.0))
    assert loss < HONEST and not risen(records)


def test_a_node_that_turns_bad_late_is_dropped_at_the_next_filtering() -> None:
    """What it did until then is noted, and the model recovers."""
    _, records = lied_to(lambda call, filters: 1.0 if call < 4 else -10.0)
    filterings = [record["round"] for record in records if record["did_filter"]]
    assert risen(records) == filterings[1:2]
    assert NODES - 1 not in [k for record in records if record["round"] >= filterings[1] for k in record["selected"]]


def test_a_node_with_a_new_identity_in_every_round_does_not_end_the_run() -> None:
    """Without keys, a node may reconnect as another one; each time it is a new client, and a filtering."""
    grid, records = federation(), list[dict[str, Any]]()
    app = grid.nodes[LIAR].app

    def reconnect(record: dict[str, Any], state: Any) -> None:
        records.append(record)
        grid.nodes[LIAR + 10**6 * (record["round"] - 1) if record["round"] > 1 else LIAR].connected = False
        grid.nodes[LIAR + 10**6 * record["round"]] = Node(app, {"partition-id": 2})

    V = FilteringSet(new_net, *blobs(77, 60))
    options: dict[str, Any] = {"filter": "prune", "k": 2, "h": 5, "evaluate": V, "options": {"filter.cap": SITES}}
    FilFL(flower.FedAvg(), out=None, callbacks=[reconnect], **options).start(grid, initial(), 5)
    assert [record["num_available"] for record in records] == 5 * [SITES]
    assert all(len(record["considered"]) <= SITES for record in records if record["did_filter"])


def test_logits_of_a_model_that_was_not_trained_bring_nothing() -> None:
    """A node may claim the logits of the model that it received, and upload that model: the claim is kept."""
    honest = plain_app(app=_keeping())
    grid = MemoryGrid({1000 + 17 * i: Node(honest, {"partition-id": 2 * i}) for i in range(NODES)})
    lazy, dishonest = _keeping(), Dishonest(lambda call, filters: 0.0)
    lazy.train()(dishonest)
    grid.nodes[1000 + 17 * (NODES - 1)].app = lazy
    records: list[dict[str, Any]] = []
    FilFL(
        flower.FedAvg(fraction_evaluate=0.0),
        filter="prune",
        k=K,
        h=5,
        evaluate=FilteringSet(new_net, *V),
        options={"filter.transport": "logits"},
        out=None,
        callbacks=[lambda record, state: records.append(record)],
    ).start(grid, initial(), 7)
    assert times_selected(records) == 0 and not any(record["refused"] for record in records)


def _keeping() -> Any:
    from flwr.clientapp import ClientApp

    return ClientApp(mods=[keep_weights(lambda context: new_net())])


# Honest nodes with a learning rate that is too large.


def test_steps_that_are_too_large_are_noted_and_the_transport_makes_no_difference() -> None:
    """Single nodes then overshoot in ordinary rounds, which nobody judges, and with a filter as without."""
    found = []
    for transport in ("models", "logits"):
        grid = MemoryGrid({})
        for i in range(NODES):
            app = _keeping()
            app.train()(Dishonest(lambda call, filters: 40.0))
            grid.nodes[1000 + 17 * i] = Node(app, {"partition-id": 2 * i})
        records: list[dict[str, Any]] = []
        result = FilFL(
            flower.FedAvg(fraction_evaluate=0.0),
            filter="prune",
            k=K,
            h=2,
            evaluate=FilteringSet(new_net, *V),
            options={"filter.transport": transport},
            out=None,
            callbacks=[lambda record, state, records=records: records.append(record)],
        ).start(grid, initial(), 7)
        found.append((numbers(result.arrays).tobytes(), [r["selected"] for r in records], risen(records)))
    assert found[0] == found[1]
    assert found[0][2]
