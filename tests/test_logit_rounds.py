"""Filter rounds by logits: the protocol, its bytes, and clients whose claims are false in many ways."""

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
from filfl.availability.always import Always
from filfl.core.clients import Failure, Update
from filfl.core.metering import MeteredClients
from filfl.core.queries import Query
from filfl.core.round import filfl_round
from filfl.core.selector import Selector
from filfl.core.server import Record, Server, State
from filfl.evaluation import Samples, cross_entropy
from filfl.filtering import Filter, Filtering, KeepAll, LocalSearch
from filfl.filtering.by_logits import AGAIN, ByLogits
from filfl.filtering.ensemble import EnsembleReward
from filfl.filtering.filtering_set import FilteringSet
from filfl.filtering.own import OwnFilter
from filfl.filtering.schedule import Periodic
from filfl.logits.check import ARITHMETIC
from filfl.logits.doubts import Doubts
from filfl.logits.encoding import EncodedLogits, Encoding
from filfl.logits.messages import LogitReply, LogitRequest, Recipients
from filfl.models.cnn import LeafCNN
from filfl.selection import Selection
from filfl.selection.divfl import DivFL
from filfl.selection.own import OwnSelection
from filfl.selection.power_of_choice import PowerOfChoice
from filfl.selection.random import Random, RandomWithReplacement
from filfl.simulation.wrappers.logit_cache import LogitCache
from filfl.system import Stopwatch, one_thread
from filfl.weights import FlatModel, Layout, Weights

M, CLASSES = 12, 3
FULL = Encoding()
MODEL = 4 * (4 * 3 + 3)
"""Bytes of nn.Linear(4, 3)."""


@pytest.fixture(autouse=True)
def use_one_thread() -> Iterator[None]:
    with one_thread():
        yield


class Learners:
    """Client k always trains to the same weights, which are better for smaller k."""

    def __init__(self, start: Weights, num_clients: int = 8) -> None:
        self._start, self.num_clients = start, num_clients

    def weights(self, k: int) -> Weights:
        rng = np.random.default_rng(k)
        good = torch.cat([2 * torch.eye(3, 4).flatten(), torch.zeros(3)])
        noise = torch.tensor(rng.normal(size=15), dtype=torch.float32)
        return Weights(good + 0.1 * (k + 1) * noise, self._start.integers)

    def train(self, t: int, ids: Sequence[int], weights: Weights) -> dict[int, Update | Failure]:
        return {k: Update(self.weights(k), 10 + k, 0.5) for k in ids}

    def query(self, query: Query, ids: Sequence[int], weights: Weights) -> dict[int, Any]:
        return self.losses(ids, weights, query.split) if query.name == "loss" else self.gradients(ids, weights)

    def losses(self, ids: Sequence[int], weights: Weights, split: str) -> dict[int, float | Failure]:
        return {k: float(k) for k in ids}

    def gradients(self, ids: Sequence[int], weights: Weights) -> dict[int, Tensor | Failure]:
        raise AssertionError("no selection here asks for gradients")

    def num_examples(self, ids: np.ndarray) -> np.ndarray:
        return 10 + np.asarray(ids)


class World:
    """A server with real parts around clients that a test may wrap."""

    def __init__(
        self,
        clients: int = 8,
        filter: Any = None,
        selection: Any = None,
        K: int = 3,
        h: int = 2,
        wrap: Any = None,
        encoding: Encoding = FULL,
        part: int | None = None,
        empty_is_global: bool = False,
        filters: bool = True,
        learners: type[Learners] = Learners,
    ) -> None:
        self.net = FlatModel(nn.Linear(4, CLASSES), torch.device("cpu"))
        self.net.vector.zero_()
        y = torch.arange(M) % CLASSES
        x = torch.eye(3, 4)[y] + 0.3 * torch.randn(M, 4, generator=torch.Generator().manual_seed(1))
        self.V = FilteringSet.of(self.net, Samples(x, y, torch.tensor(1.0), torch.tensor(0.0)), cross_entropy)
        self.learners = learners(self.net.weights(), clients)
        self.inner = LogitCache(self.learners, self.V)
        self.clients = wrap(self.inner) if wrap else self.inner
        filter = filter or LocalSearch()
        filter = filter if isinstance(filter, Filter) else OwnFilter(function=filter)
        selection = selection or Random()
        selection = (
            replace(selection, k=K) if isinstance(selection, Selection) else OwnSelection(function=selection, k=K)
        )
        self.server = Server(
            seed=0,
            clients=self.clients,
            layout=self.net.layout,
            availability=Always(),
            schedule=Periodic("algorithm-1", h),
            filter_round=ByLogits(0, filter, self.V, encoding, part, empty_is_global) if filters else None,
            cap=None,
            selector=Selector(0, selection),
            aggregation=Mean(),
        )

    def run(self, rounds: int, state: State | None = None) -> tuple[list[Record], State]:
        state, records = state or State(self.net.weights()), []
        for t in range(1, rounds + 1):
            state, record = filfl_round(t, state, self.server, Stopwatch())
            records.append(record)
        return records, state

    def mean(self, ids: Sequence[int]) -> Tensor:
        return torch.stack([self.learners.weights(k).vector for k in ids]).double().mean(dim=0).float()


class Wrapper:
    """Clients whose replies a subclass can change."""

    def __init__(self, inner: LogitCache) -> None:
        self.inner = inner
        self.uploads: list[list[int]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def train_for_logits(self, t: int, ids: Sequence[int], weights: Weights, request: LogitRequest) -> dict[int, Any]:
        replies = self.inner.train_for_logits(t, ids, weights, request)
        return {k: self.claimed(k, reply, request) for k, reply in replies.items()}

    def upload(self, t: int, ids: Sequence[int]) -> dict[int, Any]:
        self.uploads.append(list(ids))
        return {k: self.uploaded(k, reply) for k, reply in self.inner.upload(t, ids).items()}

    def claimed(self, k: int, reply: Any, request: LogitRequest) -> Any:
        return reply

    def uploaded(self, k: int, reply: Any) -> Any:
        return reply


def test_only_selected_clients_upload_and_their_weights_are_averaged() -> None:
    world = World(wrap=Wrapper, filter=KeepAll(), selection=PowerOfChoice())
    (record,), state = world.run(1)
    assert record.did_filter and record.selected == [5, 6, 7], "the highest losses"
    assert world.clients.uploads == [[5, 6, 7]]
    assert torch.equal(state.w.vector, world.mean([5, 6, 7]))
    assert record.reward_all is None and record.reward_filtered is None, "of these the server has no weights"
    assert record.reward_selected is not None and record.surrogate_all is not None
    assert record.evaluations == 8 + 3, "one a client, and one a check"


def test_bytes_by_hand() -> None:
    records, state = World(selection=PowerOfChoice(), filter=KeepAll()).run(2)
    logits, V = M * CLASSES * 4, M * 4 * 4
    asked = 8 * MODEL + 8 * 8  # power-of-choice sends the model once more, and gets losses
    assert records[0].uplink_bytes == 8 * (logits + 16) + 3 * (MODEL + 16) + 8 * 8
    assert records[0].downlink_bytes == 8 * MODEL + 8 * V + asked - 8 * 8
    assert records[1].did_filter and records[1].uplink_bytes == records[0].uplink_bytes
    assert records[1].downlink_bytes == records[0].downlink_bytes - 8 * V, "V is sent once"
    assert state.recipients.ids.tolist() == list(range(8))


def test_bytes_of_a_part_of_V_in_int8() -> None:
    (record,), _ = World(filter=KeepAll(), encoding=Encoding("int8"), part=5).run(1)
    assert record.uplink_bytes == 8 * (5 * (CLASSES + 4) + 16) + 3 * (MODEL + 16)
    assert record.downlink_bytes == 8 * (MODEL + M * 4 * 4 + 5 * 4)


def test_V_is_sent_again_to_clients_without_a_reply_and_when_it_changes() -> None:
    class Asleep(Wrapper):
        def claimed(self, k: int, reply: Any, request: LogitRequest) -> Any:
            self.new = request.new_recipients
            return Failure("asleep") if k == 2 else reply

    world = World(wrap=Asleep, h=1)
    _, state = world.run(1)
    assert world.clients.new == frozenset(range(8)) and state.recipients.ids.tolist() == [0, 1, 3, 4, 5, 6, 7]
    world.run(1, state)
    assert world.clients.new == {2}
    world.run(1, replace(state, recipients=Recipients("another", state.recipients.ids)))
    assert world.clients.new == frozenset(range(8))


def test_the_leaf_cnn_uploads_a_tenth() -> None:
    """FEMNIST with LEAF's CNN, n = 50, K = 5, m = 500: logits need about a tenth of the uplink of models."""
    layout = Layout.of(LeafCNN().build((1, 28, 28), 62))
    V = Samples(torch.zeros(500, 1, 28, 28, dtype=torch.uint8), torch.zeros(500), torch.ones(()), torch.zeros(()))

    class NoResults:
        def train(self, t: int, ids: Sequence[int], *_: Any) -> dict[int, Any]:
            return dict.fromkeys(ids)

        train_for_logits = upload = train

    def uplink(encoding: Encoding) -> int:
        clients = MeteredClients(NoResults(), layout)
        request = LogitRequest(V.without_targets(), "digest", frozenset(), None, (500, 62), encoding)
        clients.train_for_logits(1, range(50), None, request)
        clients.upload(1, range(5))
        return clients.uplink

    models = MeteredClients(NoResults(), layout)
    models.train(1, range(50), None)
    assert models.uplink == 50 * (4 * 6_603_710 + 16)
    assert uplink(Encoding()) == 50 * (500 * 62 * 4 + 16) + 5 * (4 * 6_603_710 + 16)
    assert models.uplink / uplink(Encoding()) > 9.5
    assert models.uplink / uplink(Encoding("int8")) > 9.8


# Clients that left, or whose claims are false.


class Gone(Wrapper):
    """These clients leave between their logits and their upload."""

    who: frozenset[int] = frozenset()

    def uploaded(self, k: int, reply: Any) -> Any:
        return Failure("timeout: no reply within 60 s") if k in self.who else reply


def gone(*who: int) -> Callable[[LogitCache], Gone]:
    return type("Gone", (Gone,), {"who": frozenset(who)})


def test_a_client_that_leaves_before_its_upload_is_replaced() -> None:
    world = World(wrap=gone(7), filter=KeepAll(), selection=PowerOfChoice())
    (record,), state = world.run(1)
    assert record.refused == {7: "timeout: no reply within 60 s"}
    assert record.selected == [4, 5, 6] and world.clients.uploads == [[5, 6, 7], [4]], "replaced by the next choice"
    assert record.filtered == [0, 1, 2, 3, 4, 5, 6]
    assert torch.equal(state.w.vector, world.mean([4, 5, 6]))
    assert state.recipients.ids.tolist() == list(range(8)), "it has received V as well"


def test_clients_are_replaced_until_none_is_left() -> None:
    world = World(wrap=gone(0, 1, 2, 3, 4, 5), filter=KeepAll())
    (record,), state = world.run(1)
    assert record.selected == [6, 7] and sorted(record.refused) == [0, 1, 2, 3, 4, 5] and record.filtered == [6, 7]
    assert torch.equal(state.w.vector, world.mean([6, 7]))
    world = World(wrap=gone(*range(8)), filter=KeepAll())
    (record,), state = world.run(1)
    assert record.selected == [] and not state.w.vector.any()
    assert record.notes[-1] == "no client replied; the model is unchanged"


def test_a_client_drawn_twice_that_fails_is_replaced_twice() -> None:
    world = World(clients=2, wrap=gone(0), filter=KeepAll(), selection=RandomWithReplacement(), K=6)
    (record,), state = world.run(1)
    assert record.selected == [1] * 6 and world.clients.uploads[0] == [0, 1] and 0 in record.refused
    assert torch.equal(state.w.vector, world.mean([1]))


def test_a_selection_that_chooses_fewer_is_not_asked_for_more() -> None:
    def two(pool: Any, k: int, ask: Any, rng: Any) -> list[int]:
        return [int(i) for i in pool[: min(2, k)]]

    world = World(wrap=gone(0), filter=KeepAll(), selection=two)
    (record,), _ = world.run(1)
    assert record.selected == [1, 2] and world.clients.uploads == [[0, 1], [2]]


class FalseClaimOf7(Wrapper):
    """Client 7 claims perfect logits and uploads its true weights."""

    def claimed(self, k: int, reply: Any, request: LogitRequest) -> Any:
        perfect = 20 * nn.functional.one_hot(torch.arange(M) % CLASSES, CLASSES).float()
        return replace(reply, logits=request.encoding.encode(perfect)) if k == 7 else reply


def test_a_false_claim_of_the_filtered_set_leads_to_another_filtering() -> None:
    world = World(wrap=FalseClaimOf7)
    (record,), state = world.run(1)
    assert "do not match the claimed logits" in record.refused[7] and len(record.refused) == 1
    assert record.notes == [f"1 {AGAIN}"]
    world.learners.num_clients = 7
    without = replace(world.server, clients=world.inner)
    other, expected = filfl_round(1, State(world.net.weights()), without, Stopwatch())
    assert record.filtered == expected.filtered and record.selected == expected.selected
    assert torch.equal(state.w.vector, other.w.vector)
    assert record.evaluations == 8 + 1 + len(record.selected)


def changed(**fields: Any) -> Callable[[Any, Any], Any]:
    return lambda reply, request: replace(reply, **fields)


def claims(change: Callable[[Tensor], Tensor]) -> Callable[[Any, Any], Any]:
    return lambda reply, request: replace(reply, logits=replace(reply.logits, values=change(reply.logits.values)))


ON_ARRIVAL: dict[str, Callable[[Any, Any], Any]] = {
    "failure": lambda reply, request: Failure("asleep"),
    "nothing": lambda reply, request: None,
    "a text": lambda reply, request: "text",
    "weights": lambda reply, request: Update({}, 1, 0.0),
    "no logits": changed(logits=None),
    "a tensor": changed(logits=torch.zeros(M, CLASSES)),
    "a list": changed(logits=EncodedLogits([[0.0] * CLASSES] * M)),
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
    "scales": lambda reply, request: replace(reply, logits=replace(reply.logits, scales=torch.ones(M))),
    "classes": lambda reply, request: replace(reply, logits=replace(reply.logits, classes=torch.ones(M, CLASSES))),
    "no examples": changed(num_examples=0),
    "negative examples": changed(num_examples=-5),
    "boolean examples": changed(num_examples=True),
    "half an example": changed(num_examples=1.5),
    "too many examples": changed(num_examples=10**12),
    "examples as text": changed(num_examples="many"),
    "loss as text": changed(train_loss="low"),
    "no loss": changed(train_loss=None),
}
PERFECT = 20 * nn.functional.one_hot(torch.arange(M) % CLASSES, CLASSES).float()


def uploads(change: Callable[[Tensor], Any]) -> Callable[[Any], Any]:
    return lambda reply: replace(reply, weights=replace(reply.weights, vector=change(reply.weights.vector)))


ON_UPLOAD: dict[str, Callable[[Any], Any]] = {
    "gone": lambda reply: Failure("gone"),
    "nothing": lambda reply: None,
    "a text": lambda reply: "text",
    "logits again": lambda reply: LogitReply(EncodedLogits(torch.zeros(M, CLASSES)), 1, 0.0),
    "w_t": uploads(torch.zeros_like),
    "nan": uploads(lambda w: w * math.nan),
    "infinite": uploads(lambda w: w / 0),
    "huge": uploads(lambda w: w * 1e38),
    "short": uploads(lambda w: w[:-1]),
    "double": uploads(lambda w: w.double()),
    "half": uploads(lambda w: w.half()),
    "negated": uploads(lambda w: -w),
    "scaled": uploads(lambda w: 10 * w),
    "one weight": uploads(lambda w: w + 5 * (torch.arange(15) == 4)),
    "a state": lambda reply: replace(reply, weights={"weight": torch.zeros(3, 4)}),
    "more examples": lambda reply: replace(reply, num_examples=10**6),
    "no examples": lambda reply: replace(reply, num_examples=0),
    "integers": lambda reply: replace(reply, weights=replace(reply.weights, integers=torch.ones(3))),
    "its true weights": lambda reply: reply,
    "negated, offset 20000": uploads(lambda w: -w + 20_000.0 * (torch.arange(15) >= 12)),
    "negated, offset 45": uploads(lambda w: -w + 45.0 * (torch.arange(15) >= 12)),
}
CLAIMED = {
    "negated, offset 20000": PERFECT + 20_000.0,
    "negated, offset 45": PERFECT + 45.0,
}
"""The claims that go with uploads of large outputs, which would widen a relative tolerance."""


class FalseClaims(Wrapper):
    """All but three clients make false claims, of a different kind in every round."""

    TRUTHFUL = (1, 4, 9)

    def __init__(self, inner: LogitCache) -> None:
        super().__init__(inner)
        self.turn = 0
        self.false: set[int] = set()
        self.kinds: Counter[str] = Counter()

    def train_for_logits(self, t: int, ids: Sequence[int], weights: Weights, request: LogitRequest) -> dict[int, Any]:
        self.turn, self.false = t, set()
        return super().train_for_logits(t, ids, weights, request)

    def kind(self, k: int) -> tuple[dict[str, Any], str]:
        kinds = [*((ON_ARRIVAL, name) for name in ON_ARRIVAL), *((ON_UPLOAD, name) for name in ON_UPLOAD)]
        return kinds[(11 * self.turn + k) % len(kinds)]

    def claimed(self, k: int, reply: Any, request: LogitRequest) -> Any:
        kinds, name = self.kind(k)
        if k in self.TRUTHFUL:
            return reply
        if kinds is ON_UPLOAD:
            return replace(reply, logits=request.encoding.encode(CLAIMED.get(name, PERFECT)))
        self._count(k, f"on arrival: {name}")
        return ON_ARRIVAL[name](reply, request)

    def uploaded(self, k: int, reply: Any) -> Any:
        if k in self.TRUTHFUL:
            return reply
        _, name = self.kind(k)
        self._count(k, f"on upload: {name}")
        return ON_UPLOAD[name](reply)

    def _count(self, k: int, kind: str) -> None:
        self.false.add(k)
        self.kinds[kind] += 1


@pytest.mark.parametrize("filter", [LocalSearch(), KeepAll()])
def test_no_false_claim_of_a_thousand_enters_the_average(filter: Filter) -> None:
    world = World(clients=16, wrap=FalseClaims, filter=filter, h=1, K=20)
    state, total = State(world.net.weights()), 0
    for t in range(1, 93):
        state, record = filfl_round(t, state, world.server, Stopwatch())
        state = replace(state, doubts=Doubts())  # so that every client claims again
        assert record.did_filter
        assert set(record.refused) == world.clients.false, "every false claim is refused, and no other client"
        assert all(record.refused.values())
        assert record.selected and set(record.selected) <= set(FalseClaims.TRUTHFUL), "every round has an update"
        assert torch.equal(state.w.vector, world.mean(record.selected))
        total += len(world.clients.false)
    assert total >= 1000, total
    assert len(world.clients.kinds) == len(ON_ARRIVAL) + len(ON_UPLOAD), "every kind of false claim occurs"


class FalseClaim(Wrapper):
    """Client 7 claims perfect logits and uploads other weights, as in `ON_UPLOAD`."""

    kind = ""

    def claimed(self, k: int, reply: Any, request: LogitRequest) -> Any:
        claim = request.encoding.encode(CLAIMED.get(self.kind, PERFECT))
        return replace(reply, logits=claim) if k == 7 else reply

    def uploaded(self, k: int, reply: Any) -> Any:
        return ON_UPLOAD[self.kind](reply) if k == 7 else reply


ENCODINGS = [Encoding(), Encoding("float16"), Encoding("int8"), Encoding("float32", 2), Encoding("int8", 2)]


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("kind", ON_UPLOAD)
def test_every_false_claim_is_found_with_every_encoding(kind: str, encoding: Encoding) -> None:
    world = World(wrap=FalseClaim, filter=KeepAll(), encoding=encoding, K=8)
    world.clients.kind = kind
    (record,), state = world.run(1)
    assert list(record.refused) == [7] and record.refused[7]
    assert record.selected == [*range(7)]
    assert torch.equal(state.w.vector, world.mean(range(7)))


class SlightlyBetterClaim(Wrapper):
    """Client 7 claims slightly better logits for every sample, each within the tolerance of the arithmetic."""

    def claimed(self, k: int, reply: Any, request: LogitRequest) -> Any:
        z = reply.logits.values
        lifted = z + 0.9 * ARITHMETIC * z.abs().amax(dim=1, keepdim=True).clamp(min=1.0) * (PERFECT / 10 - 1)
        return replace(reply, logits=request.encoding.encode(lifted)) if k == 7 else reply


def test_a_claim_slightly_better_everywhere_is_found_by_its_loss() -> None:
    world = World(wrap=SlightlyBetterClaim, filter=KeepAll(), K=8)
    (record,), _ = world.run(1)
    assert list(record.refused) == [7] and "loss on V is" in record.refused[7]


def test_fewer_than_K_uploads_after_a_false_claim_lead_to_another_filtering() -> None:
    """The filter used a false claim, so it decides again; no client uploads twice."""

    def with_7(ids: Sequence[int], R: Any, rng: Any) -> Filtering:
        return Filtering(kept=(2, 7) if 7 in ids else (2, 3, 5, 6))

    world = World(wrap=FalseClaimOf7, filter=with_7)
    (record,), state = world.run(1)
    assert record.notes == [f"1 {AGAIN}"]
    assert record.filtered == [2, 3, 5, 6] and len(record.selected) == 3
    asked = [k for ids in world.clients.uploads for k in ids]
    assert sorted(asked) == sorted({2, 7, *record.selected})
    assert torch.equal(state.w.vector, world.mean(record.selected))


def test_an_earlier_upload_is_reused_after_another_filtering() -> None:
    def with_7(ids: Sequence[int], R: Any, rng: Any) -> Filtering:
        return Filtering(kept=(2, 7) if 7 in ids else (2, 3, 6))

    def last(pool: Any, k: int, ask: Any, rng: Any) -> list[int]:
        return [int(i) for i in pool[-k:]]

    world = World(wrap=FalseClaimOf7, filter=with_7, selection=last, K=2)
    (record,), _ = world.run(1)
    assert record.selected == [2, 6] and world.clients.uploads == [[2, 7], [6]]


def test_every_claim_without_an_upload_leads_to_another_filtering() -> None:
    """Also when K other clients uploaded, and when the client is gone: S^f was chosen by its claim."""

    def with_7(ids: Sequence[int], R: Any, rng: Any) -> Filtering:
        return Filtering(kept=(0, 1, 2, 7) if 7 in ids else (2, 3))

    for wrap, reason in [(gone(7), "no reply"), (FalseClaimOf7, "do not match")]:
        world = World(wrap=wrap, filter=with_7, K=4)
        (record,), state = world.run(1)
        assert record.notes == [f"1 {AGAIN}"] and reason in record.refused[7]
        assert record.filtered == record.selected == [2, 3]
        assert world.clients.uploads == [[0, 1, 2, 7], [3]]
        assert torch.equal(state.w.vector, world.mean([2, 3])), "uploads of clients that are not kept are not used"


class CorrectionBy7(Wrapper):
    """Client 7 claims what makes up for clients 0, 1 and 2, whose logits are those of weights times -3."""

    def claimed(self, k: int, reply: Any, request: LogitRequest) -> Any:
        if k != 7:
            return reply
        bad = sum(self.inner._V.outputs([self.inner._kept[i].weights])[0] for i in range(3))
        wanted = 8 * nn.functional.one_hot(torch.arange(M) % CLASSES, CLASSES).float()
        return replace(reply, logits=request.encoding.encode(4 * wanted - bad))


class ThreeBad(Learners):
    def weights(self, k: int) -> Weights:
        w = super().weights(k)
        return Weights(-3 * w.vector, w.integers) if k < 3 else w


def test_a_claim_that_decides_is_checked_although_its_client_is_not_selected() -> None:
    def with_7(ids: Sequence[int], R: Any, rng: Any) -> Filtering:
        return Filtering(kept=(0, 1, 2, 7) if 7 in ids else (3, 4, 5, 6))

    def first(pool: Any, k: int, ask: Any, rng: Any) -> list[int]:
        return [int(i) for i in pool[:k]]

    world = World(filter=with_7, selection=first, wrap=CorrectionBy7, learners=ThreeBad)
    (record,), state = world.run(1)
    assert world.clients.uploads == [[0, 1, 2], [7], [3, 4, 5]]
    assert list(record.refused) == [7] and record.notes == [f"1 {AGAIN}"]
    assert record.filtered == [3, 4, 5, 6] and record.selected == [3, 4, 5]
    assert torch.equal(state.w.vector, world.mean([3, 4, 5])) and state.doubts.filterings == {7: 10}
    truthful = World(filter=with_7, selection=first, wrap=Wrapper, learners=ThreeBad)
    (record,), state = truthful.run(1)
    assert truthful.clients.uploads == [[0, 1, 2], [7]] and not record.refused and not record.notes
    assert record.selected == [0, 1, 2], "a claim that is only checked is not averaged"
    assert torch.equal(state.w.vector, truthful.mean([0, 1, 2]))


def test_a_claim_that_is_better_than_all_others_is_checked() -> None:
    def first(pool: Any, k: int, ask: Any, rng: Any) -> list[int]:
        return [int(i) for i in pool[:k]]

    def all_but_6(ids: Sequence[int], R: Any, rng: Any) -> Filtering:
        return Filtering(kept=tuple(k for k in ids if k != 6))

    world = World(filter=all_but_6, selection=first, wrap=FalseClaimOf7)
    (record,), _ = world.run(1)
    assert world.clients.uploads[:2] == [[0, 1, 2], [7]] and list(record.refused) == [7]
    assert record.selected == [0, 1, 2] and record.filtered == list(range(6))
    world = World(filter=KeepAll(), selection=first, wrap=FalseClaimOf7)
    (record,), _ = world.run(1)
    assert world.clients.uploads == [[0, 1, 2]] and not record.refused, "where all are kept, no claim has decided"


def test_a_doubted_client_decides_only_about_itself() -> None:
    seen: list[list[int]] = []

    def first_two(ids: Sequence[int], R: Any, rng: Any) -> Filtering:
        seen.append(sorted(ids))
        return Filtering(kept=tuple(sorted(ids)[:2]))

    world = World(filter=first_two, h=1)
    z = {k: world.V.outputs([world.learners.weights(k)])[0] for k in range(8)}
    R = EnsembleReward(z, torch.arange(M) % CLASSES, cross_entropy)
    kept = set()
    for k in range(8):
        ignored = (k + 1) % 8
        doubted = replace(State(world.net.weights()), doubts=Doubts({k: 0, ignored: 2}))
        state, record = filfl_round(1, doubted, world.server, Stopwatch())
        others = [i for i in range(8) if i not in (k, ignored)]
        assert seen.pop() == others
        if R(frozenset([*others[:2], k])) >= R(frozenset(others[:2])):
            assert record.filtered == sorted([*others[:2], k])
            assert state.doubts.filterings == {ignored: 1}, "it uploaded what it claimed"
            kept.add(k)
        else:
            assert record.filtered == others[:2] and state.doubts.filterings == {k: 0, ignored: 1}
    assert 0 < len(kept) < 8


def test_doubts_by_hand() -> None:
    doubts = Doubts().after(claimed=range(6), uploaded=[0, 1], gone=[2], mismatched=[3])
    assert doubts.filterings == {2: 0, 3: 10} and doubts.ignored == {3}
    doubts = doubts.after(claimed=[2, 3], uploaded=[2], gone=[], mismatched=[])
    assert doubts.filterings == {3: 9}
    for _ in range(20):
        doubts = doubts.after(claimed=[3], uploaded=[], gone=[], mismatched=[])
    assert doubts.filterings == {3: 0} and not doubts.ignored and 3 in doubts
    assert doubts.after(claimed=[], uploaded=[], gone=[3], mismatched=[]).filterings == {3: 0}
    assert Doubts({3: 5}).after(claimed=[], uploaded=[], gone=[3], mismatched=[]).filterings == {3: 5}


def test_kept_weights_are_dropped_with_the_round() -> None:
    world = World()
    world.run(1)
    assert isinstance(world.clients.upload(1, [0])[0], Update)
    assert world.clients.upload(2, [0])[0] == Failure("the client has no weights of round 2")
    world.clients.train(2, [3], world.net.weights())
    assert isinstance(world.clients.upload(1, [0])[0], Failure), "the next round has begun"


def test_a_model_that_raises_on_V_affects_only_its_client() -> None:
    class Picky(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            if self.bias[0] > 50:
                raise ValueError("too much")
            return super().forward(x)

    V = FilteringSet(lambda: Picky(4, 3), torch.zeros(2, 4), torch.zeros(2))
    none = torch.zeros(0, dtype=torch.int64)
    weights = [Weights(torch.full((15,), value), none) for value in (1.0, 99.0)]
    good, bad = V.outputs_or_failures(weights, V.samples)
    assert good.shape == (2, 3) and bad == Failure("the model raised ValueError on V: too much")


def test_each_round_uses_its_own_part_of_V_the_same_for_all_clients() -> None:
    class Listening(Wrapper):
        def __init__(self, inner: LogitCache) -> None:
            super().__init__(inner)
            self.rows: list[list[int]] = []

        def train_for_logits(
            self, t: int, ids: Sequence[int], weights: Weights, request: LogitRequest
        ) -> dict[int, Any]:
            self.rows.append(request.rows.tolist())
            assert request.shape == (5, CLASSES) and len(request.samples) == 5
            assert request.samples.y.numel() == 0 and request.V.y.numel() == 0, "targets stay with the server"
            return super().train_for_logits(t, ids, weights, request)

    world = World(wrap=Listening, part=5, h=1)
    records, _ = world.run(4)
    assert all(len(set(rows)) == 5 and rows == sorted(rows) for rows in world.clients.rows)
    assert len({tuple(rows) for rows in world.clients.rows}) == 4
    again = World(wrap=Listening, part=5, h=1)
    assert again.run(4)[0] == records and again.clients.rows == world.clients.rows
    everything = ByLogits(0, KeepAll(), world.V, Encoding(), part=M)
    assert everything.request(1, [1], Recipients()).rows is None


def test_divfl_by_predictions_selects_different_models() -> None:
    class Twins(Learners):
        def weights(self, k: int) -> Weights:
            return super().weights(k % 3)  # 0, 3 and 6 are alike, and so on

    world = World(clients=9, filter=KeepAll(), selection=DivFL(of="predictions"))
    world.clients._clients = world.learners = Twins(world.net.weights(), 9)
    records, state = world.run(2)
    assert sorted(k % 3 for k in records[0].selected) == [0, 1, 2], "one of each kind"
    assert state.latest.keys() == set(range(9)) and state.latest[0].shape == (M * CLASSES,)
    world.server = replace(world.server, schedule=Periodic("algorithm-1", 99))
    state, record = filfl_round(3, state, world.server, Stopwatch())
    assert not record.did_filter and sorted(k % 3 for k in record.selected) == [0, 1, 2], (
        "also until the next filtering"
    )


def test_divfl_without_predictions_is_random() -> None:
    world = World(filters=False, selection=DivFL(of="predictions"))
    (record,), _ = world.run(1)
    assert len(record.selected) == 3


@pytest.mark.parametrize("empty", ["zero", "global"])
def test_an_empty_filtering_selects_from_all_that_replied(empty: str) -> None:
    world = World(empty_is_global=empty == "global", filter=lambda clients, reward, rng: Filtering(kept=()))
    (record,), _ = world.run(1)
    assert record.filtered == [] and len(record.selected) == 3
    assert record.notes == ["the filter kept no client; selected from all that trained"]
    assert record.evaluations == 8 + 3, "a filter that does not ask for the empty set does not pay for it"


def test_the_global_model_is_compared_in_the_encoding_of_the_claims() -> None:
    outputs = torch.randn(M, CLASSES, generator=torch.Generator().manual_seed(0))
    encoding = Encoding("int8")
    sent = World(encoding=encoding, empty_is_global=True).server.filter_round.as_sent(outputs)
    assert torch.equal(sent, encoding.decode(encoding.encode(outputs), (M, CLASSES), outputs.device))
    assert not torch.equal(sent, outputs)
    for diverged in (torch.full((M, CLASSES), 1e6), torch.full((M, CLASSES), torch.nan)):  # no client could send it
        kept = World(empty_is_global=True).server.filter_round.as_sent(diverged)
        assert torch.equal(kept.nan_to_num(), diverged.nan_to_num()), "its loss decides, and the round does not end"


def test_the_digest_of_V_covers_how_bytes_become_numbers() -> None:
    x, y = torch.zeros(3, 2, dtype=torch.uint8), torch.zeros(3, dtype=torch.int64)
    one, two = torch.ones(()), torch.full((), 2.0)
    net = FlatModel(nn.Linear(2, 3), torch.device("cpu"))
    digests = {
        FilteringSet.of(net, Samples(x, y, scale, shift), cross_entropy).public()[1]
        for scale in (one, two)
        for shift in (one, two)
    }
    assert len(digests) == 4
