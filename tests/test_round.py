"""Algorithm 1, with scripted clients."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from filfl.aggregation.mean import Mean
from filfl.availability.base import Availability, Ids
from filfl.core.clients import Failure, Update
from filfl.core.exchange import Exchange
from filfl.core.queries import Query
from filfl.core.round import filfl_round
from filfl.core.selector import Selector
from filfl.core.server import START, Record, Server, State
from filfl.errors import PluginError
from filfl.filtering import DGF, Filter, Filtering, KeepAll, Opt
from filfl.filtering.by_models import ByModels
from filfl.filtering.judges import Federated, Variable
from filfl.filtering.own import OwnFilter
from filfl.filtering.rewards import Judgement
from filfl.filtering.schedule import Periodic
from filfl.selection import Selection
from filfl.selection.divfl import DivFL
from filfl.selection.own import OwnSelection
from filfl.selection.power_of_choice import PowerOfChoice
from filfl.selection.random import Random, RandomWithReplacement
from filfl.system import Stopwatch
from filfl.weights import Layout, Weights

LAYOUT = Layout.of(nn.Linear(1, 1, bias=False))


def one(value: float) -> Weights:
    return Weights(torch.tensor([float(value)]), torch.zeros(0, dtype=torch.int64))


@dataclass
class Scripted:
    """The weight of client k is k after training; some clients fail."""

    num_clients = 10

    failing: dict[int, str] = field(default_factory=dict)
    trained: list[list[int]] = field(default_factory=list)
    splits: list[str] = field(default_factory=list)
    asked: list[list[int]] = field(default_factory=list)

    def train(self, t: int, ids: Sequence[int], weights: Weights) -> dict[int, Update | Failure]:
        self.trained.append(list(ids))
        return {k: Failure(self.failing[k]) if k in self.failing else Update(one(k), 10, 0.5 * k) for k in ids}

    def query(self, query: Query, ids: Sequence[int], weights: Weights) -> dict[int, Any]:
        return self.losses(ids, weights, query.split) if query.name == "loss" else self.gradients(ids, weights)

    def losses(self, ids: Sequence[int], weights: Weights, split: str) -> dict[int, float | Failure]:
        self.splits.append(split)
        return {k: Failure("asleep") if k == 0 else float(k) for k in ids}

    def gradients(self, ids: Sequence[int], weights: Weights) -> dict[int, torch.Tensor | Failure]:
        broken = {0: torch.tensor([torch.nan]), 5: torch.ones(2)}
        return {k: broken.get(k, torch.tensor([float(k)])) for k in ids}

    def num_examples(self, ids: np.ndarray) -> np.ndarray:
        return np.full(len(ids), 10)

    def take_notes(self) -> list[str]:
        return []


@dataclass(frozen=True, kw_only=True)
class Listed(Availability):
    """The clients of a list per round are available."""

    rounds: tuple[tuple[int, ...], ...]

    def __call__(self, t: int, num_clients: int, seed: int) -> np.ndarray:
        return np.array(self.rounds[t - 1], dtype=np.int64)


def keep(*ids: int) -> Callable[..., Filtering]:
    return lambda clients, reward, rng: Filtering(kept=tuple(k for k in clients if k in ids))


def distance_to_3(S_t: Ids, exchange: Exchange) -> Judgement:
    """The loss is |w - 3|."""
    return Judgement(lambda w: abs(float(w[0]) - 3.0))


def run(
    rounds: list[tuple[int, ...]],
    *,
    filter: Any = None,
    selection: Any = None,
    K: int = 2,
    h: int = 3,
    when: str = "algorithm-1",
    n: int | None = None,
    clients: Any = None,
    problem: Any = None,
    by: type[ByModels] = ByModels,
    **options: Any,
) -> tuple[list[Record], State, Any]:
    clients = clients or Scripted()
    if by is not ByModels:
        options["ensemble"] = "V"
    if filter is not None and not isinstance(filter, Filter):
        filter = OwnFilter(function=filter)
    selection = selection or Random()
    selection = replace(selection, k=K) if isinstance(selection, Selection) else OwnSelection(function=selection, k=K)
    server = Server(
        seed=0,
        clients=clients,
        layout=LAYOUT,
        availability=Listed(rounds=tuple(rounds)),
        schedule=Periodic(when, h),
        filter_round=by(0, filter, **{"judge": distance_to_3, **options}) if filter else None,
        cap=n,
        selector=Selector(0, selection),
        aggregation=Mean(),
        problem=problem,
    )
    state, records = State(one(100)), []
    for t in range(1, len(rounds) + 1):
        state, record = filfl_round(t, state, server, Stopwatch())
        records.append(record)
    return records, state, clients


def test_a_filter_round_trains_all_and_averages_the_selected_without_training_again() -> None:
    (record,), state, clients = run([(1, 2, 3, 4, 5)], filter=keep(2, 3, 5))
    assert record.did_filter
    assert [sorted(ids) for ids in clients.trained] == [[1, 2, 3, 4, 5]]
    assert record.filtered == [2, 3, 5] and set(record.selected) <= {2, 3, 5} and len(record.selected) == 2
    assert state.w.vector.item() == np.mean(record.selected)
    assert record.selected_train_loss == np.mean([0.5 * k for k in record.selected])


def test_ordinary_rounds_train_only_selected_clients_of_the_filtered_set() -> None:
    records, _, clients = run([(1, 2, 3, 4, 5)] * 2, filter=keep(2, 3, 5))
    assert not records[1].did_filter
    assert clients.trained[1] == records[1].selected
    assert set(records[1].selected) <= {2, 3, 5}
    assert records[1].reward_all is None and records[1].evaluations == 0


def test_algorithm_1_filters_at_the_start_every_h_rounds_and_when_the_clients_change() -> None:
    a, b = (1, 2, 3), (1, 2)
    records, *_ = run([a, a, a, a, b, b, a], filter=DGF(), h=3)
    # t = 1: S_0 is empty; 3, 6: t mod 3; 5 and 7: S_t changed.
    assert [r.round for r in records if r.did_filter] == [1, 3, 5, 6, 7]


def test_figure_2_filters_when_a_new_client_is_available_and_h_rounds_after_the_last() -> None:
    a, b = (1, 2, 3), (1, 2)
    records, *_ = run([a, a, a, a, b, a, (1, 4), b], filter=DGF(), when="figure-2", h=3)
    # 1: all clients are new; 4: three rounds later; 5 and 6: no new client; 7: client 4; 8: client 2, absent in 7.
    assert [r.round for r in records if r.did_filter] == [1, 4, 7, 8]
    records, *_ = run([a] * 3, filter=KeepAll(), when="figure-2", h=9, n=2)
    assert [r.round for r in records if r.did_filter] == [1], "available clients that were not considered are not new"


def test_without_a_filter_the_state_remembers_no_clients() -> None:
    _, state, _ = run([(1, 2, 3), (2, 3)])
    assert state.past is START and state.S_f == ()
    _, state, _ = run([(1, 2, 3), (2, 3)], filter=DGF(), when="figure-2")
    assert state.past.previous.tolist() == [2, 3] and state.past.seen.tolist() == [1, 2, 3]


def test_a_record_lists_available_clients_unless_all_are() -> None:
    some, every = run([(1, 3), tuple(range(10))])[0]
    assert (some.available, some.num_available, some.filtered, some.num_filtered) == ([1, 3], 2, None, 2)
    assert (every.available, every.num_available, every.num_filtered) == (None, 10, 10)
    (kept,), *_ = run([tuple(range(10))], filter=keep(2, 3, 5))
    assert (kept.available, kept.filtered, kept.num_filtered) == (None, [2, 3, 5], 3)


def test_an_empty_round_counts_as_a_change_of_availability() -> None:
    records, *_ = run([(1, 2), (), (1, 2), (1, 2)], filter=DGF(), h=99)
    assert [r.round for r in records if r.did_filter] == [1, 3]


def test_the_cap_limits_the_considered_clients_in_shuffled_order() -> None:
    records, *_ = run([tuple(range(10))], filter=KeepAll(), n=4)
    assert len(records[0].considered) == 4 and records[0].considered != sorted(records[0].considered)
    assert records[0].filtered == sorted(records[0].considered)


def test_a_pool_of_k_or_fewer_is_selected_without_the_selection() -> None:
    def never(pool, k, ask, rng):
        raise AssertionError("selection is skipped (Remark 3)")

    (record,), *_ = run([(1, 2, 3)], filter=keep(1, 3), selection=never)
    assert record.selected == [1, 3]


def test_with_replacement_always_draws_k_and_a_client_drawn_twice_counts_twice() -> None:
    (record,), state, clients = run([(4, 7)], selection=RandomWithReplacement(), K=5)
    assert len(record.selected) == 5
    assert clients.trained == [sorted(set(record.selected))]
    assert state.w.vector.item() == pytest.approx(np.mean(record.selected))


def test_an_empty_filtering_falls_back_with_a_note() -> None:
    records, *_ = run([(1, 2, 3)] * 2, filter=keep())
    assert records[0].filtered == [] and len(records[0].selected) == 2
    assert records[0].notes == ["the filter kept no client; selected from all that trained"]
    assert records[1].notes == ["no client of S^f is available; selected from all available clients"]
    assert len(records[1].selected) == 2


def test_clients_that_left_are_not_selected() -> None:
    records, *_ = run([(1, 2, 3, 4), (3, 4)], filter=keep(1, 2, 3), when="figure-2")
    assert records[1].filtered == [3] and records[1].selected == [3]
    records, *_ = run([(1, 2, 3, 4), (4,)], filter=keep(1, 2, 3), when="figure-2")
    assert records[1].selected == [4] and records[1].notes


def test_a_refused_update_affects_only_its_client() -> None:
    (record,), state, _ = run([(1, 2, 3)], K=3, clients=Scripted(failing={2: "training raised"}))
    assert record.selected == [1, 2, 3] and record.refused == {2: "training raised"}
    assert state.w.vector.item() == 2.0  # (1 + 3) / 2


def test_a_refused_update_never_reaches_the_filter() -> None:
    (record,), *_ = run([(1, 2, 3)], filter=KeepAll(), clients=Scripted(failing={2: "no"}))
    assert record.filtered == [1, 3] and 2 in record.considered and record.refused == {2: "no"}


@pytest.mark.parametrize("chi", [None, DGF()])
def test_without_updates_the_model_is_unchanged(chi) -> None:
    (record,), state, _ = run([(1, 2)], filter=chi, clients=Scripted(failing={1: "no", 2: "no"}))
    assert state.w.vector.item() == 100
    assert record.notes == ["every update was refused; the model is unchanged"]
    assert record.selected_train_loss is None


def test_a_round_without_clients_is_recorded() -> None:
    records, state, clients = run([(), (1, 2)], filter=DGF())
    assert records[0].notes == ["no client is available; the model is unchanged"]
    assert not records[0].did_filter and records[1].did_filter
    assert len(clients.trained) == 1 and state.w.vector.item() < 100


def test_rewards_and_evaluations_are_recorded() -> None:
    (record,), *_ = run([(1, 2, 3, 4)], filter=DGF(), selection=PowerOfChoice())
    # Client k has weight k and the loss is |w - 3|: R(all) = 10 - |2.5 - 3|.
    assert record.reward_all == 9.5
    assert record.reward_filtered == 10 - abs(np.mean(record.filtered) - 3)
    assert record.reward_selected == 10 - abs(np.mean(record.selected) - 3)
    assert record.evaluations == 2 * 4 - 1
    assert [step["client"] for step in record.trace] == record.considered
    (record,), *_ = run([(1, 2, 3, 4)], filter=KeepAll())
    assert record.reward_all == 9.5 and record.evaluations == 0, "evaluations for the record are not counted"


def test_the_optimum_changes_nothing_but_its_field() -> None:
    (record,), *_ = run([(1, 2, 5, 9)], filter=KeepAll(), optimum=True)
    # Client k has weight k and the loss is |w - 3|: (1 + 5) / 2 = 3 has loss 0; the mean of all four is 4.25.
    assert (record.reward_all, record.reward_optimum, record.evaluations) == (8.75, 10.0, 0)
    (dgf,), *_ = run([(1, 2, 5, 9)], filter=DGF(), optimum=True)
    (plain,), *_ = run([(1, 2, 5, 9)], filter=DGF())
    assert replace(dgf, reward_optimum=None) == plain and dgf.evaluations == 7
    (record,), *_ = run([(1,)], filter=DGF(), optimum=True, clients=Scripted(failing={1: "no"}))
    assert record.reward_optimum is None and record.refused


def test_the_filtering_gap_by_hand() -> None:
    class Quadratic:
        def filter_terms(self, v: torch.Tensor, z: torch.Tensor, S_f: Sequence[int]) -> dict[str, float]:
            assert S_f == (2, 3, 5)
            return {"filtering_gap": float((v[0] - 3) ** 2 - (z[0] - 3) ** 2)}

    every, some = tuple(range(10)), (1, 2, 3, 5)
    records, *_ = run([every, every, some], filter=keep(2, 3, 5), problem=Quadratic())
    # v = 4.5 and z = 10 / 3: (4.5 - 3)^2 - (1 / 3)^2.
    assert records[0].metrics == {"filtering_gap": pytest.approx(2.25 - 1 / 9)}
    assert records[1].metrics == {}, "no filter round"
    assert records[2].did_filter and records[2].metrics == {}, "not all clients trained"
    (record,), *_ = run([every], filter=keep(), problem=Quadratic())
    assert record.metrics == {}, "z is not defined"
    (refused,), *_ = run([every], filter=keep(2), problem=Quadratic(), clients=Scripted(failing={1: "no"}))
    assert refused.metrics == {}


class NumberOfClients:
    """A surrogate that needs four inferences; its reward is the number of clients."""

    evaluations = 4

    def __init__(self, trained: Any, w_t: Weights) -> None:
        self.asked: list[frozenset[int]] = []

    def __call__(self, subset: frozenset[int]) -> float:
        self.asked.append(subset)
        return float(len(subset))

    def knows(self, subset: frozenset[int]) -> bool:
        return True


def test_a_filter_maximises_the_surrogate_and_the_record_has_both_rewards() -> None:
    (record,), *_ = run([(1, 2, 3, 4)], filter=Opt(), by=BySizes)
    assert record.filtered == [1, 2, 3, 4], "the surrogate prefers larger sets"
    assert (record.surrogate_all, record.surrogate_filtered, record.surrogate_selected) == (4.0, 4.0, 2.0)
    assert record.reward_all == record.reward_filtered == 9.5
    assert record.reward_selected == 10 - abs(np.mean(record.selected) - 3)
    assert record.evaluations == 4, "evaluations for the record are not counted"
    (plain,), *_ = run([(1, 2, 3, 4)], filter=DGF())
    assert plain.surrogate_all is plain.surrogate_filtered is plain.surrogate_selected is None


class BySizes(ByModels):
    """Uses the surrogate above instead of an ensemble."""

    def surrogate(self, weights: Any, w_t: Weights) -> Any:
        return NumberOfClients(weights, w_t)


def runners(*sets: tuple[int, ...]) -> Callable[..., Filtering]:
    return lambda clients, reward, rng: Filtering(kept=sets[0], runners_up=sets[1:])


@pytest.mark.parametrize(
    ("found", "verify", "filtered", "evaluations", "notes"),
    [
        # Client k has weight k and the loss is |w - 3|: 1, 2, 4, 5 together have loss 0, 1 and 2 do not.
        ([(1, 2)], 0, [1, 2], 4, []),
        ([(1, 2)], 1, [1, 2, 4, 5], 4 + 2, ["verified: 4 clients instead of the 2 filtered"]),
        ([(1, 5)], 1, [1, 5], 4 + 2, []),  # equal to keeping all: the result of the filter is kept
        ([(1, 2), (2, 4)], 1, [1, 2, 4, 5], 4 + 2, ["verified: 4 clients instead of the 2 filtered"]),
        ([(1, 2), (2, 4)], 2, [2, 4], 4 + 3, ["verified: 2 clients instead of the 2 filtered"]),
        ([(1, 2), (4,), (2, 4)], 2, [1, 2, 4, 5], 4 + 3, ["verified: 4 clients instead of the 2 filtered"]),
        ([(1, 2, 4, 5)], 5, [1, 2, 4, 5], 4 + 1, []),
        ([()], 3, [1, 2, 4, 5], 4 + 1, ["verified: 4 clients instead of the 0 filtered"]),
    ],
)
def test_verification_takes_the_best_by_the_true_reward(
    found: list[tuple[int, ...]], verify: int, filtered: list[int], evaluations: int, notes: list[str]
) -> None:
    (record,), *_ = run([(1, 2, 4, 5)], filter=runners(*found), by=BySizes, verify=verify)
    assert (record.filtered, record.evaluations, record.notes) == (filtered, evaluations, notes)


def test_without_updates_nothing_is_verified() -> None:
    silent = Scripted(failing={1: "no", 2: "no"})
    (record,), *_ = run([(1, 2)], filter=DGF(), by=BySizes, verify=2, clients=silent)
    assert record.filtered == [] and record.evaluations == 0 and record.surrogate_all is None
    assert record.notes == ["every update was refused; the model is unchanged"]


def test_power_of_choice_selects_the_highest_losses_of_clients_that_reply() -> None:
    (record,), _, clients = run([(0, 1, 2, 3)], selection=PowerOfChoice())
    assert record.selected == [2, 3] and record.refused == {0: "asleep"}
    assert clients.splits == ["validation"]


class Silent(Scripted):
    """Clients that train, but do not reply to queries."""

    def losses(self, ids: Sequence[int], weights: Weights, split: str) -> dict[int, float | Failure]:
        return {k: Failure("asleep") for k in ids}


@pytest.mark.parametrize("chi", [None, KeepAll()])
def test_without_replies_no_client_is_selected_and_the_record_has_the_reason(chi) -> None:
    (record,), state, _ = run([(1, 2, 3)], selection=PowerOfChoice(), filter=chi, clients=Silent())
    assert record.notes == ["no client was selected; the model is unchanged"]
    assert state.w.vector.item() == 100


def test_ids_of_any_integer_type_are_recorded_as_numbers() -> None:
    (record,), *_ = run([(1, 2, 3)], filter=lambda clients, R, rng: DGF()(list(rng.permutation(clients)), R, rng))
    assert json.loads(json.dumps(record.table()))["filtered"] == record.filtered
    assert all(type(step["client"]) is int for step in record.trace)


def test_divfl_leaves_out_broken_gradients() -> None:
    (record,), *_ = run([(0, 1, 2, 5, 9)], selection=DivFL())
    assert not {0, 5} & set(record.selected)
    assert record.refused == {
        0: "the gradient has a value that is not finite",
        5: "the gradient has shape (2,) instead of (1,)",
    }


def test_latest_updates_are_remembered_for_selections_that_need_them() -> None:
    _, state, _ = run([(1, 2, 3)], selection=DivFL(of="updates"))
    assert {k: v.item() for k, v in state.latest.items()} == {k: k - 100 for k in state.latest}
    assert len(state.latest) == 2
    assert not run([(1, 2, 3)])[1].latest


def test_the_same_clients_train_for_every_rounds() -> None:
    """With every = 3: selected in round 1, in 3 and 6, and in 8, where a client is not available any more."""
    everyone = tuple(range(10))
    records, *_ = run([everyone] * 7, selection=Random(every=3))
    A = [record.selected for record in records]
    assert A[0] == A[1] and A[2] == A[3] == A[4] and A[5] == A[6]
    assert A[1] != A[2] != A[5]
    fewer = tuple(k for k in everyone if k != A[6][0])
    records, *_ = run([everyone] * 7 + [fewer], selection=Random(every=3))
    assert records[6].selected == A[6] and A[6][0] not in records[7].selected and len(records[7].selected) == 2
    assert len({tuple(record.selected) for record in run([everyone] * 7)[0]}) > 3, "every = 1"


def test_with_a_filter_the_same_clients_train_while_they_are_kept() -> None:
    records, *_ = run([(1, 2, 3, 4, 5)] * 3, filter=keep(2, 3, 5), h=2, selection=Random(every=5))
    assert [record.did_filter for record in records] == [True, True, False]
    assert len({tuple(record.selected) for record in records}) == 1


class Opinionated(Scripted):
    """The optimum of client k is the weight k; client 9 does not reply."""

    def losses(self, ids: Sequence[int], weights: Weights, split: str) -> dict[int, float | Failure]:
        self.splits.append(split)
        self.asked.append(list(ids))
        w = float(weights.vector[0])
        return {k: Failure("gone") if k == 9 else abs(w - k) for k in ids}

    def num_examples(self, ids: np.ndarray) -> np.ndarray:
        return 10 * ids


def test_a_variable_judge_is_one_random_client_and_its_messages_are_counted() -> None:
    w = LAYOUT.num_bytes
    records, _, clients = run([(1, 2, 3, 4)] * 12, filter=DGF(), h=1, judge=Variable(0), clients=Opinionated())
    for record in records:
        (k,) = record.judges
        assert k in record.available
        assert record.reward_all == 10 - abs(2.5 - k)
        assert record.evaluations == 7
        assert record.downlink_bytes == 4 * w + 7 * w and record.uplink_bytes == 4 * (w + 16) + 7 * 8
    assert len({record.judges[0] for record in records}) > 2
    assert set(clients.splits) == {"validation"}


def test_no_message_is_sent_for_the_record_alone() -> None:
    (record,), _, clients = run([(1, 2, 3)], filter=KeepAll(), judge=Variable(0), clients=Opinionated())
    assert record.reward_all is None and not clients.asked


def test_the_federated_judge_weights_clients_by_their_examples() -> None:
    (record,), _, clients = run([(1, 2, 3, 9)], filter=DGF(), judge=Federated(0), clients=Opinionated())
    # All four average to 3.75; the clients that reply, k = 1, 2, 3, have 10, 20, 30 examples.
    expected = (10 * 2.75 + 20 * 1.75 + 30 * 0.75) / 60
    assert record.reward_all == pytest.approx(10 - expected)
    assert record.judges == [1, 2, 3, 9] and record.refused == {9: "gone"}
    assert set(clients.splits) == {"train"} and all(ids == [1, 2, 3, 9] for ids in clients.asked)


def test_bytes_by_hand() -> None:
    w = LAYOUT.num_bytes
    (record,), *_ = run([(1, 2, 3, 4)])
    assert (record.downlink_bytes, record.uplink_bytes) == (2 * w, 2 * (w + 16))
    (record,), *_ = run([(1, 2, 3, 4)], filter=KeepAll())
    assert (record.downlink_bytes, record.uplink_bytes) == (4 * w, 4 * (w + 16))
    (record,), *_ = run([(1, 2, 3, 4)], selection=PowerOfChoice())
    assert (record.downlink_bytes, record.uplink_bytes) == (4 * w + 2 * w, 4 * 8 + 2 * (w + 16))
    (record,), *_ = run([(1, 2, 3, 4)], selection=DivFL())
    assert (record.downlink_bytes, record.uplink_bytes) == (4 * w + 2 * w, 4 * w + 2 * (w + 16))
    (record,), *_ = run([(1, 2)], clients=Scripted(failing={2: "no"}))
    assert (record.downlink_bytes, record.uplink_bytes) == (2 * w, w + 16)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"selection": lambda pool, k, ask, rng: [99]}, "at most 2 of"),
        ({"selection": lambda pool, k, ask, rng: pool}, "at most 2 of"),
        ({"selection": lambda pool, k, ask, rng: [1, 1]}, "twice"),
        ({"filter": lambda clients, reward, rng: Filtering(kept=(99,))}, "the filter must keep some of"),
        ({"filter": lambda clients, reward, rng: Filtering(kept=None)}, "a list of client ids"),
        ({"selection": lambda pool, k, ask, rng: None}, "a list of client ids"),
        ({"selection": lambda pool, k, ask, rng: [1.7]}, "a list of client ids"),
        ({"filter": lambda clients, reward, rng: clients}, "the filter must return"),
        ({"filter": lambda clients, reward, rng: Filtering(kept=(1, 1))}, "each once"),
        ({"filter": lambda clients, reward, rng: Filtering(kept=(1,), runners_up=((99,),))}, "each once"),
    ],
)
def test_own_plugins_that_break_the_rules_raise(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(PluginError, match=message):
        run([(1, 2, 3)], **changes)
