"""Filter rounds that move logits: the protocol, its bytes, and clients that lie in every way they can."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from filfl.aggregation.mean import Mean
from filfl.algorithms.fedavg import FedAvg
from filfl.availability.always import Always
from filfl.clients import Failure, Job, Metered, Rehearsed, Sheet, Update
from filfl.clock import Stopwatch
from filfl.evaluation import Samples, cross_entropy
from filfl.filtering import FILTERS, Filtering, KeepAll, LocalSearch
from filfl.logits import ARITHMETIC, Form, Packed
from filfl.models.cnn import LeafCNN
from filfl.round import filfl_round
from filfl.sections import FilterOptions
from filfl.selection import OwnSelection
from filfl.selection.divfl import DivFL
from filfl.selection.power_of_choice import PowerOfChoice
from filfl.selection.random import Random, RandomWithReplacement
from filfl.server import FilFL, Handed, Record, State
from filfl.simulation.inference import Inference
from filfl.simulation.rehearsing import RehearsingClients
from filfl.simulation.rewards import digest_of, make_by_logits, make_reward, says_to
from filfl.simulation.setup import one_thread
from filfl.weights import FlatModel, Layout, Weights

M, CLASSES = 12, 3
LOGITS = FilterOptions(method=LocalSearch(), reward="ensemble", transport="logits")
MODEL = 4 * (4 * 3 + 3)
"""Bytes of nn.Linear(4, 3)."""


@pytest.fixture(autouse=True)
def one_thread_as_in_a_run() -> Iterator[None]:
    with one_thread():
        yield


class Learners:
    """Client k always trains to the same weights, which know the classes the better the smaller k is."""

    def __init__(self, start: Weights) -> None:
        self._start = start

    def weights(self, k: int) -> Weights:
        rng = np.random.default_rng(k)
        good = torch.cat([2 * torch.eye(3, 4).flatten(), torch.zeros(3)])
        noise = torch.tensor(rng.normal(size=15), dtype=torch.float32)
        return Weights(good + 0.1 * (k + 1) * noise, self._start.integers)

    def train(self, ids: Sequence[int], weights: Weights, job: Job) -> dict[int, Update | Failure]:
        return {k: Update(self.weights(k), 10 + k, 0.5) for k in ids}

    def losses(self, ids: Sequence[int], weights: Weights, split: str) -> dict[int, float | Failure]:
        return {k: float(k) for k in ids}

    def gradients(self, ids: Sequence[int], weights: Weights) -> dict[int, Tensor | Failure]:
        raise AssertionError("nobody asks for gradients")

    def num_examples(self, ids: np.ndarray) -> np.ndarray:
        return 10 + np.asarray(ids)


class World:
    """A server with real parts around clients that a test may put something in front of."""

    def __init__(self, clients: int = 8, options: FilterOptions = LOGITS, door: Any = None, **changes: Any) -> None:
        self.net = FlatModel(nn.Linear(4, CLASSES), torch.device("cpu"))
        self.net.vector.zero_()
        y = torch.arange(M) % CLASSES
        x = torch.eye(3, 4)[y] + 0.3 * torch.randn(M, 4, generator=torch.Generator().manual_seed(1))
        self.V = Samples(x, y, torch.tensor(1.0), torch.tensor(0.0))
        inference = Inference(self.net)
        self.learners = Learners(self.net.weights())
        honest = RehearsingClients(self.learners, lambda weights, samples: says_to(inference, weights, samples))
        self.door = door(honest) if door else honest
        self.fl = FilFL(
            **{
                "seed": 0,
                "num_clients": clients,
                "clients": self.door,
                "layout": self.net.layout,
                "availability": Always(),
                "filter": options.method,
                "reward": make_reward(options, inference, self.V, cross_entropy),
                "judge": None,
                "when": "algorithm-1",
                "h": 2,
                "n": None,
                "selection": Random(),
                "K": 3,
                "job": lambda t: Job(0, t, FedAvg(), 1, None, 8, 0.1),
                "aggregation": Mean(),
                "logits": make_by_logits(options, inference, self.V, cross_entropy),
                **changes,
            }
        )

    def run(self, rounds: int, state: State | None = None) -> tuple[list[Record], State]:
        state, records = state or State(self.net.weights()), []
        for t in range(1, rounds + 1):
            state, record = filfl_round(t, state, self.fl, Stopwatch())
            records.append(record)
        return records, state

    def mean(self, ids: Sequence[int]) -> Tensor:
        return torch.stack([self.learners.weights(k).vector for k in ids]).double().mean(dim=0).float()


class Front:
    """A door in front of the honest one, in which answers are changed on their way."""

    def __init__(self, honest: RehearsingClients) -> None:
        self.honest = honest
        self.uploads: list[list[int]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.honest, name)

    def rehearse(self, ids: Sequence[int], weights: Weights, job: Job, sheet: Sheet) -> dict[int, Any]:
        answers = self.honest.rehearse(ids, weights, job, sheet)
        return {k: self.told(k, answer, sheet) for k, answer in answers.items()}

    def upload(self, ids: Sequence[int], round: int) -> dict[int, Any]:
        self.uploads.append(list(ids))
        return {k: self.sent(k, answer) for k, answer in self.honest.upload(ids, round).items()}

    def told(self, k: int, answer: Any, sheet: Sheet) -> Any:
        return answer

    def sent(self, k: int, answer: Any) -> Any:
        return answer


def test_only_the_chosen_upload_and_their_weights_are_averaged() -> None:
    world = World(door=Front, options=replace(LOGITS, method=KeepAll()), selection=PowerOfChoice())
    (record,), state = world.run(1)
    assert record.did_filter and record.selected == [5, 6, 7], "the highest losses"
    assert world.door.uploads == [[5, 6, 7]]
    assert torch.equal(state.w.vector, world.mean([5, 6, 7]))
    assert record.reward_all is None and record.reward_filtered is None, "of these the server has no weights"
    assert record.reward_selected is not None and record.surrogate_all is not None
    assert record.evaluations == 8 + 3, "one a client, and one a check"


def test_bytes_by_hand() -> None:
    records, state = World(selection=PowerOfChoice(), options=replace(LOGITS, method=KeepAll())).run(2)
    logits, V = M * CLASSES * 4, M * 4 * 4
    asked = 8 * MODEL + 8 * 8  # power-of-choice sends the model once more, and gets losses
    assert records[0].uplink_bytes == 8 * (logits + 16) + 3 * (MODEL + 16) + 8 * 8
    assert records[0].downlink_bytes == 8 * MODEL + 8 * V + asked - 8 * 8
    assert records[1].did_filter and records[1].uplink_bytes == records[0].uplink_bytes
    assert records[1].downlink_bytes == records[0].downlink_bytes - 8 * V, "V is sent once"
    assert state.handed.to.tolist() == list(range(8))


def test_bytes_of_a_part_of_V_in_int8() -> None:
    options = replace(LOGITS, method=KeepAll(), precision="int8", part=5)
    (record,), _ = World(options=options).run(1)
    assert record.uplink_bytes == 8 * (5 * (CLASSES + 4) + 16) + 3 * (MODEL + 16)
    assert record.downlink_bytes == 8 * (MODEL + M * 4 * 4 + 5 * 4)


def test_V_is_sent_again_to_who_did_not_answer_and_when_it_is_another() -> None:
    class Asleep(Front):
        def told(self, k: int, answer: Any, sheet: Sheet) -> Any:
            self.new = sheet.new
            return Failure("asleep") if k == 2 else answer

    world = World(door=Asleep, h=1)
    _, state = world.run(1)
    assert world.door.new == frozenset(range(8)) and state.handed.to.tolist() == [0, 1, 3, 4, 5, 6, 7]
    world.run(1, state)
    assert world.door.new == {2}
    world.run(1, replace(state, handed=Handed("another", state.handed.to)))
    assert world.door.new == frozenset(range(8))


def test_the_leaf_cnn_uploads_a_tenth() -> None:
    """The judgement of the issue: FEMNIST with LEAF's CNN, n = 50, K = 5, m = 500."""
    layout = Layout.of(LeafCNN().build((1, 28, 28), 62))
    V = Samples(torch.zeros(500, 1, 28, 28, dtype=torch.uint8), torch.zeros(500), torch.ones(()), torch.zeros(()))

    class Silent:
        def train(self, ids: Sequence[int], *_: Any) -> dict[int, Any]:
            return dict.fromkeys(ids)

        rehearse = train

        def upload(self, ids: Sequence[int], round: int) -> dict[int, Any]:
            return dict.fromkeys(ids)

    def uplink(form: Form) -> int:
        door = Metered(Silent(), layout)
        sheet = Sheet(V.without_targets(), digest_of(V), frozenset(), None, (500, 62), form)
        door.rehearse(range(50), None, None, sheet)
        door.upload(range(5), 1)
        return door.uplink

    models = Metered(Silent(), layout)
    models.train(range(50), None, None)
    assert models.uplink == 50 * (4 * 6_603_710 + 16)
    assert uplink(Form()) == 50 * (500 * 62 * 4 + 16) + 5 * (4 * 6_603_710 + 16)
    assert models.uplink / uplink(Form()) > 9.5
    assert models.uplink / uplink(Form("int8")) > 9.8


# Clients that have gone, or lie.


class Gone(Front):
    """These clients leave between their two answers."""

    who: frozenset[int] = frozenset()

    def sent(self, k: int, answer: Any) -> Any:
        return Failure("no answer within 60 s") if k in self.who else answer


def gone(*who: int) -> Callable[[RehearsingClients], Gone]:
    return type("Gone", (Gone,), {"who": frozenset(who)})


def test_who_leaves_between_its_two_answers_costs_only_itself() -> None:
    world = World(door=gone(7), options=replace(LOGITS, method=KeepAll()), selection=PowerOfChoice())
    (record,), state = world.run(1)
    assert record.refused == {7: "no answer within 60 s"}
    assert record.selected == [4, 5, 6] and world.door.uploads == [[5, 6, 7], [4]], "the next choice stands in"
    assert record.filtered == [0, 1, 2, 3, 4, 5, 6]
    assert torch.equal(state.w.vector, world.mean([4, 5, 6]))
    assert state.handed.to.tolist() == list(range(8)), "it has V all the same"


def test_until_nobody_is_left() -> None:
    options = replace(LOGITS, method=KeepAll())
    world = World(door=gone(0, 1, 2, 3, 4, 5), options=options)
    (record,), state = world.run(1)
    assert record.selected == [6, 7] and sorted(record.refused) == [0, 1, 2, 3, 4, 5] and record.filtered == [6, 7]
    assert torch.equal(state.w.vector, world.mean([6, 7]))
    world = World(door=gone(*range(8)), options=options)
    (record,), state = world.run(1)
    assert record.selected == [] and not state.w.vector.any()
    assert record.notes[-1] == "every update was refused: the model stays as it was"


def test_a_client_drawn_twice_that_fails_is_replaced_twice() -> None:
    options = replace(LOGITS, method=KeepAll())
    world = World(clients=2, door=gone(0), options=options, selection=RandomWithReplacement(), K=6)
    (record,), state = world.run(1)
    assert record.selected == [1] * 6 and world.door.uploads[0] == [0, 1] and 0 in record.refused
    assert torch.equal(state.w.vector, world.mean([1]))


def test_a_selection_that_chooses_fewer_is_not_asked_for_more() -> None:
    def two(pool: Any, k: int, ask: Any, rng: Any) -> list[int]:
        return [int(i) for i in pool[: min(2, k)]]

    world = World(door=gone(0), options=replace(LOGITS, method=KeepAll()), selection=OwnSelection(function=two))
    (record,), _ = world.run(1)
    assert record.selected == [1, 2] and world.door.uploads == [[0, 1], [2]]


class Boaster(Front):
    """Client 7 claims to know every class, and sends what it trained to."""

    def told(self, k: int, answer: Any, sheet: Sheet) -> Any:
        perfect = 20 * nn.functional.one_hot(torch.arange(M) % CLASSES, CLASSES).float()
        return replace(answer, logits=sheet.form.pack(perfect)) if k == 7 else answer


def test_where_all_of_the_filtered_lied_it_filters_again_without_them() -> None:
    world = World(door=Boaster)
    (record,), state = world.run(1)
    assert "do not say what it claimed" in record.refused[7] and len(record.refused) == 1
    assert record.notes == ["1 of the chosen did not send what they claimed: filtered again without them"]
    without = replace(world.fl, clients=gone()(world.door.honest), num_clients=7)
    honest, expected = filfl_round(1, State(world.net.weights()), without, Stopwatch())
    assert record.filtered == expected.filtered and record.selected == expected.selected
    assert torch.equal(state.w.vector, honest.w.vector)
    assert record.evaluations == 8 + 1 + len(record.selected)


def changed(**fields: Any) -> Callable[[Any, Any], Any]:
    return lambda answer, sheet: replace(answer, **fields)


def claims(change: Callable[[Tensor], Tensor]) -> Callable[[Any, Any], Any]:
    return lambda answer, sheet: replace(answer, logits=replace(answer.logits, values=change(answer.logits.values)))


ON_ARRIVAL: dict[str, Callable[[Any, Any], Any]] = {
    "asleep": lambda answer, sheet: Failure("asleep"),
    "nothing": lambda answer, sheet: None,
    "a text": lambda answer, sheet: "all is well",
    "weights": lambda answer, sheet: Update({}, 1, 0.0),
    "no logits": changed(logits=None),
    "a tensor": changed(logits=torch.zeros(M, CLASSES)),
    "a list": changed(logits=Packed([[0.0] * CLASSES] * M)),
    "too few": claims(lambda z: z[:-1]),
    "too many": claims(lambda z: z.repeat(1000, 1)),
    "transposed": claims(lambda z: z.T),
    "flat": claims(lambda z: z.flatten()),
    "double": claims(lambda z: z.double()),
    "integers": claims(lambda z: z.long()),
    "complex": claims(lambda z: z + 1j),
    "one nan": claims(lambda z: z.where(torch.arange(M)[:, None] != 3, math.nan)),
    "infinite": claims(lambda z: z / 0),
    "huge": claims(lambda z: z * 1e30),
    "scales": lambda answer, sheet: replace(answer, logits=replace(answer.logits, scales=torch.ones(M))),
    "classes": lambda answer, sheet: replace(answer, logits=replace(answer.logits, classes=torch.ones(M, CLASSES))),
    "no examples": changed(num_examples=0),
    "fewer than none": changed(num_examples=-5),
    "true examples": changed(num_examples=True),
    "half an example": changed(num_examples=1.5),
    "all examples": changed(num_examples=10**12),
    "examples in words": changed(num_examples="many"),
    "a loss in words": changed(train_loss="low"),
    "no loss": changed(train_loss=None),
}
PERFECT = 20 * nn.functional.one_hot(torch.arange(M) % CLASSES, CLASSES).float()


def uploads(change: Callable[[Tensor], Any]) -> Callable[[Any], Any]:
    return lambda answer: replace(answer, weights=replace(answer.weights, vector=change(answer.weights.vector)))


ON_UPLOAD: dict[str, Callable[[Any], Any]] = {
    "gone": lambda answer: Failure("gone"),
    "nothing": lambda answer: None,
    "a text": lambda answer: "here you are",
    "logits again": lambda answer: Rehearsed(Packed(torch.zeros(M, CLASSES)), 1, 0.0),
    "w_t": uploads(torch.zeros_like),
    "nan": uploads(lambda w: w * math.nan),
    "infinite": uploads(lambda w: w / 0),
    "huge": uploads(lambda w: w * 1e38),
    "short": uploads(lambda w: w[:-1]),
    "double": uploads(lambda w: w.double()),
    "half": uploads(lambda w: w.half()),
    "turned": uploads(lambda w: -w),
    "scaled": uploads(lambda w: 10 * w),
    "one weight": uploads(lambda w: w + 5 * (torch.arange(15) == 4)),
    "a state": lambda answer: replace(answer, weights={"weight": torch.zeros(3, 4)}),
    "more examples": lambda answer: replace(answer, num_examples=10**6),
    "no examples": lambda answer: replace(answer, num_examples=0),
    "integers": lambda answer: replace(answer, weights=replace(answer.weights, integers=torch.ones(3))),
    "what it trained to": lambda answer: answer,
    "turned and far away": uploads(lambda w: -w + 20_000.0 * (torch.arange(15) >= 12)),
    "turned and further off": uploads(lambda w: -w + 45.0 * (torch.arange(15) >= 12)),
}
CLAIMED = {
    "turned and far away": PERFECT + 20_000.0,
    "turned and further off": PERFECT + 45.0,
}
"""What goes with an upload that is meant to make room for itself."""


class Liars(Front):
    """All but three clients lie, each in another way in every round; those of the second kind claim to know it all."""

    HONEST = (1, 4, 9)

    def __init__(self, honest: RehearsingClients) -> None:
        super().__init__(honest)
        self.turn = 0
        self.lied: set[int] = set()
        self.kinds: Counter[str] = Counter()

    def rehearse(self, ids: Sequence[int], weights: Weights, job: Job, sheet: Sheet) -> dict[int, Any]:
        self.turn, self.lied = job.round, set()
        return super().rehearse(ids, weights, job, sheet)

    def kind(self, k: int) -> tuple[dict[str, Any], str]:
        kinds = [*((ON_ARRIVAL, name) for name in ON_ARRIVAL), *((ON_UPLOAD, name) for name in ON_UPLOAD)]
        return kinds[(11 * self.turn + k) % len(kinds)]

    def told(self, k: int, answer: Any, sheet: Sheet) -> Any:
        kinds, name = self.kind(k)
        if k in self.HONEST:
            return answer
        if kinds is ON_UPLOAD:
            return replace(answer, logits=sheet.form.pack(CLAIMED.get(name, PERFECT)))
        self._count(k, f"on arrival: {name}")
        return ON_ARRIVAL[name](answer, sheet)

    def sent(self, k: int, answer: Any) -> Any:
        if k in self.HONEST:
            return answer
        _, name = self.kind(k)
        self._count(k, f"on upload: {name}")
        return ON_UPLOAD[name](answer)

    def _count(self, k: int, kind: str) -> None:
        self.lied.add(k)
        self.kinds[kind] += 1


@pytest.mark.parametrize("name", ["local-search", "keep-all"])
def test_a_thousand_lies_and_none_enters_the_average(name: str) -> None:
    world = World(clients=16, door=Liars, options=replace(LOGITS, method=FILTERS[name]()), h=1, K=20)
    state, told = State(world.net.weights()), 0
    for t in range(1, 93):
        state, record = filfl_round(t, state, world.fl, Stopwatch())
        assert record.did_filter
        assert set(record.refused) == world.door.lied, "each is in the record, and nobody else"
        assert all(record.refused.values())
        assert record.selected and set(record.selected) <= set(Liars.HONEST), "no round is lost"
        assert torch.equal(state.w.vector, world.mean(record.selected))
        told += len(world.door.lied)
    assert told >= 1000, told
    assert len(world.door.kinds) == len(ON_ARRIVAL) + len(ON_UPLOAD), "of every kind"


class Liar(Front):
    """Client 7 claims to know every class, and uploads one of the above."""

    kind = ""

    def told(self, k: int, answer: Any, sheet: Sheet) -> Any:
        claim = sheet.form.pack(CLAIMED.get(self.kind, PERFECT))
        return replace(answer, logits=claim) if k == 7 else answer

    def sent(self, k: int, answer: Any) -> Any:
        return ON_UPLOAD[self.kind](answer) if k == 7 else answer


@pytest.mark.parametrize("form", [("float32", None), ("float16", None), ("int8", None), ("float32", 2), ("int8", 2)])
@pytest.mark.parametrize("kind", ON_UPLOAD)
def test_every_lie_is_found_in_every_form(kind: str, form: tuple[Any, int | None]) -> None:
    options = replace(LOGITS, method=KeepAll(), precision=form[0], top=form[1])
    world = World(door=Liar, options=options, K=8)
    world.door.kind = kind
    (record,), state = world.run(1)
    assert list(record.refused) == [7] and record.refused[7]
    assert record.selected == [*range(7)]
    assert torch.equal(state.w.vector, world.mean(range(7)))


class Flatterer(Front):
    """Client 7 claims a little more on every sample than it knows, but nowhere more than arithmetic could explain."""

    def told(self, k: int, answer: Any, sheet: Sheet) -> Any:
        z = answer.logits.values
        lifted = z + 0.9 * ARITHMETIC * z.abs().amax(dim=1, keepdim=True).clamp(min=1.0) * (PERFECT / 10 - 1)
        return replace(answer, logits=sheet.form.pack(lifted)) if k == 7 else answer


def test_who_flatters_itself_everywhere_is_found_by_its_loss() -> None:
    world = World(door=Flatterer, options=replace(LOGITS, method=KeepAll()), K=8)
    (record,), _ = world.run(1)
    assert list(record.refused) == [7] and "V's loss is" in record.refused[7]


def test_who_is_left_of_the_filtered_is_not_enough_where_somebody_lied() -> None:
    """The filter went by a claim that was not so: it goes again, and nobody uploads twice."""

    def with_7(ids: Sequence[int], R: Any, rng: Any) -> Filtering:
        return Filtering(kept=(2, 7) if 7 in ids else (2, 3, 5, 6))

    world = World(door=Boaster, filter=with_7)
    (record,), state = world.run(1)
    assert record.notes == ["1 of the chosen did not send what they claimed: filtered again without them"]
    assert record.filtered == [2, 3, 5, 6] and len(record.selected) == 3
    asked = [k for ids in world.door.uploads for k in ids]
    assert sorted(asked) == sorted({2, 7, *record.selected})
    assert torch.equal(state.w.vector, world.mean(record.selected))


def test_who_uploaded_before_may_be_chosen_when_it_filters_again() -> None:
    class AndGone(Boaster):
        def sent(self, k: int, answer: Any) -> Any:
            return Failure("gone") if k == 3 else answer

    def with_7(ids: Sequence[int], R: Any, rng: Any) -> Filtering:
        return Filtering(kept=(2, 7) if 7 in ids else (2, 3, 6))

    def last(pool: Any, k: int, ask: Any, rng: Any) -> list[int]:
        return [int(i) for i in pool[-k:]]

    world = World(door=AndGone, filter=with_7, selection=OwnSelection(function=last), K=2)
    (record,), _ = world.run(1)
    assert record.selected == [2, 6] and world.door.uploads == [[2, 7], [3, 6]]


def test_who_merely_left_does_not_make_it_filter_again() -> None:
    def both(ids: Sequence[int], R: Any, rng: Any) -> Filtering:
        return Filtering(kept=(2, 7))

    world = World(door=gone(7), filter=both)
    (record,), _ = world.run(1)
    assert record.selected == record.filtered == [2] and not record.notes


def test_weights_are_forgotten_with_the_round() -> None:
    world = World()
    world.run(1)
    assert isinstance(world.door.upload([0], 1)[0], Update)
    late = world.door.upload([0], 2)[0]
    assert late == Failure("it keeps no weights of round 2")
    world.door.train([3], world.net.weights(), world.fl.job(2))
    assert isinstance(world.door.upload([0], 1)[0], Failure), "the next round has begun"


def test_a_model_that_raises_on_V_costs_only_its_client() -> None:
    class Picky(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            if self.bias[0] > 50:
                raise ValueError("too much")
            return super().forward(x)

    inference = Inference(FlatModel(Picky(4, 3), torch.device("cpu")))
    V = Samples(torch.zeros(2, 4), torch.zeros(2), torch.tensor(1.0), torch.tensor(0.0))
    nothing = torch.zeros(0, dtype=torch.int64)
    good, bad = says_to(inference, [Weights(torch.full((15,), value), nothing) for value in (1.0, 99.0)], V)
    assert good.shape == (2, 3) and bad == Failure("its model raised ValueError on V: too much")


def test_a_round_goes_by_its_own_part_of_V_the_same_for_all() -> None:
    class Listening(Front):
        def __init__(self, honest: RehearsingClients) -> None:
            super().__init__(honest)
            self.rows: list[list[int]] = []

        def rehearse(self, ids: Sequence[int], weights: Weights, job: Job, sheet: Sheet) -> dict[int, Any]:
            self.rows.append(sheet.rows.tolist())
            assert sheet.shape == (5, CLASSES) and len(sheet.samples) == 5
            assert sheet.samples.y.numel() == 0 and sheet.V.y.numel() == 0, "targets stay with the server"
            return super().rehearse(ids, weights, job, sheet)

    world = World(door=Listening, options=replace(LOGITS, part=5), h=1)
    records, _ = world.run(4)
    assert all(len(set(rows)) == 5 and rows == sorted(rows) for rows in world.door.rows)
    assert len({tuple(rows) for rows in world.door.rows}) == 4
    again = World(door=Listening, options=replace(LOGITS, part=5), h=1)
    assert again.run(4)[0] == records and again.door.rows == world.door.rows
    assert (
        make_by_logits(replace(LOGITS, part=M), Inference(world.net), world.V, cross_entropy)
        .sheet(0, 1, [1], Handed())
        .rows
        is None
    ), "all of V is no part"


def test_divfl_goes_by_what_the_models_said() -> None:
    class Twins(Learners):
        def weights(self, k: int) -> Weights:
            return super().weights(k % 3)  # 0, 3 and 6 are alike, and so on

    world = World(clients=9, options=replace(LOGITS, method=KeepAll()), selection=DivFL(of="predictions"))
    world.door._clients = world.learners = Twins(world.net.weights())
    records, state = world.run(2)
    assert sorted(k % 3 for k in records[0].selected) == [0, 1, 2], "one of each kind"
    assert state.latest.keys() == set(range(9)) and state.latest[0].shape == (M * CLASSES,)
    world.fl = replace(world.fl, h=99)
    state, record = filfl_round(3, state, world.fl, Stopwatch())
    assert not record.did_filter and sorted(k % 3 for k in record.selected) == [0, 1, 2], (
        "also until the next filtering"
    )


def test_without_a_word_from_anybody_divfl_chooses_by_chance() -> None:
    world = World(filter=None, selection=DivFL(of="predictions"))
    (record,), _ = world.run(1)
    assert len(record.selected) == 3


@pytest.mark.parametrize("empty", ["zero", "global"])
def test_what_the_filter_kept_nobody_of_is_chosen_from_all_that_answered(empty: str) -> None:
    options = replace(LOGITS, empty=empty)
    world = World(options=options, filter=lambda clients, reward, rng: Filtering(kept=()))
    (record,), _ = world.run(1)
    assert record.filtered == [] and len(record.selected) == 3
    assert record.notes == ["the filter kept nobody: chosen from all that trained"]
    assert record.evaluations == 8 + 3 + (empty == "global")


def test_the_name_of_V_covers_how_its_bytes_are_read() -> None:
    x, y = torch.zeros(3, 2, dtype=torch.uint8), torch.zeros(3, dtype=torch.int64)
    one, two = torch.ones(()), torch.full((), 2.0)
    names = {digest_of(Samples(x, y, scale, shift)) for scale in (one, two) for shift in (one, two)}
    assert len(names) == 4
