"""Algorithm 1 of the paper: one round of FilFL, line by line.

It knows nothing of processes, networks, files or progress bars. What it needs of the outside comes through one
door, `clients`.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from filfl.aggregation import Aggregation, ServerState
from filfl.availability import Availability
from filfl.clients import Clients, Job, Metered
from filfl.clock import Stopwatch
from filfl.conversation import Conversation
from filfl.errors import PluginError
from filfl.filtering import Filter, Filtering, Step
from filfl.filtering.when import START, WHEN, Ids, Past
from filfl.rng import stream
from filfl.selection import Selects
from filfl.weights import Layout, Weights


class CountedReward(Protocol):
    """R over the subsets of the clients that trained, with a count of what it cost."""

    evaluations: int

    def __call__(self, subset: frozenset[int], /) -> float: ...


@dataclass(frozen=True)
class FilFL:
    """What Algorithm 1 requires: E and eta (in `job`), K, h, n, chi (`filter`), and the parts that it leaves open."""

    seed: int
    num_clients: int
    clients: Clients
    layout: Layout
    availability: Availability
    filter: Filter | None
    """chi-GF, or any other filter. None is federated learning without filtering."""
    reward: Callable[[Mapping[int, Tensor], Weights], CountedReward]
    """(trained weights of the clients, w_t) -> R"""
    when: str
    h: int
    n: int | None
    """The cap on the clients considered in a filtering; None is no cap."""
    selection: Selects
    K: int
    job: Callable[[int], Job]
    aggregation: Aggregation


@dataclass(frozen=True)
class State:
    """What the server carries from round to round."""

    w: Weights
    S_f: tuple[int, ...] = ()
    past: Past = START
    server: ServerState = field(default_factory=dict)
    latest: Mapping[int, Tensor] = field(default_factory=dict)
    """How each client last changed the model, where the selection goes by that."""


@dataclass(frozen=True)
class Record:
    """What happened in one round. Everything in it is reproducible; seconds are kept elsewhere."""

    round: int
    did_filter: bool
    available: list[int]
    considered: list[int]
    """The clients that a filtering visited, in its order."""
    filtered: list[int]
    """The part of S^f that is available; everybody available where nothing filters."""
    selected: list[int]
    refused: dict[int, str]
    notes: list[str]
    train_loss: float | None
    reward_all: float | None
    reward_filtered: float | None
    reward_selected: float | None
    evaluations: int
    """Inferences over the filtering dataset that the filter needed."""
    uplink_bytes: int
    downlink_bytes: int
    trace: list[dict[str, Any]]

    def table(self) -> dict[str, Any]:
        return asdict(self)


def filfl_round(t: int, state: State, fl: FilFL, clock: Stopwatch) -> tuple[State, Record]:
    """Lines 3-19 of Algorithm 1: (t, state) -> (state, record)."""
    S_t = fl.availability(t, fl.num_clients, fl.seed)
    rng = {purpose: stream(fl.seed, t, purpose) for purpose in ("shuffle", "filter", "selection")}
    talk = Conversation(
        door=Metered(fl.clients, fl.layout),
        layout=fl.layout,
        w_t=state.w,
        job=fl.job(t),
        selection=fl.selection,
        K=fl.K,
        rng=rng["selection"],
        latest=state.latest,
        clock=clock,
    )
    notes: list[str] = []
    considered: list[int] = []
    rewards: dict[str, float | None] = {"all": None, "filtered": None, "selected": None}
    evaluations, trace = 0, tuple[Step, ...]()
    past = replace(state.past, previous=S_t)

    filters = fl.filter is not None and len(S_t) > 0 and WHEN[fl.when](t, fl.h, S_t, state.past)
    if fl.filter is not None and filters:  # line 3
        considered = [int(k) for k in rng["shuffle"].permutation(S_t)[: fl.n]]
        w = talk.train(considered)  # lines 4-8
        with clock("filter"):
            R = fl.reward({k: w[k].weights.vector for k in considered if k in w}, state.w)
            found = _filtered(fl.filter, [k for k in considered if k in w], R, rng["filter"])
            evaluations, trace = R.evaluations, found.trace
        S_f = eligible = _sorted_ids(found.kept)  # line 9
        if w and not S_f:
            notes.append("the filter kept nobody: chosen from all that trained")
        A_t = talk.select(S_f or sorted(w))  # line 9, line 17 of Algorithm 2
        with clock("filter"):
            for name, subset in {"all": w, "filtered": S_f, "selected": A_t}.items():
                rewards[name] = R(frozenset(subset)) if subset else None
        past = Past(previous=S_t, seen=S_t, filtered_at=t)
    else:  # line 10
        S_f = state.S_f
        eligible = _sorted_ids(set(S_f) & set(S_t.tolist())) if fl.filter is not None else tuple(S_t.tolist())
        if not eligible and len(S_t):
            notes.append("nobody of S^f is available: chosen from all available")
        A_t = talk.select(eligible or S_t.tolist())  # line 11
        w = talk.train(sorted(set(A_t)))  # lines 12-16

    averaged = [w[k] for k in A_t if k in w]
    with clock("aggregate"):
        server, w_next = state.server, state.w
        if averaged:
            server, w_next = fl.aggregation(state.server, state.w, averaged)  # lines 18-19
        else:
            notes.append(f"{_why_nobody(S_t, considered or A_t)}: the model stays as it was")

    record = Record(
        round=t,
        did_filter=filters,
        available=S_t.tolist(),
        considered=considered,
        filtered=list(eligible),
        selected=A_t,
        refused=dict(sorted(talk.refused.items())),
        notes=notes,
        train_loss=_mean([update.train_loss for update in averaged]),
        reward_all=rewards["all"],
        reward_filtered=rewards["filtered"],
        reward_selected=rewards["selected"],
        evaluations=evaluations,
        uplink_bytes=talk.door.uplink,
        downlink_bytes=talk.door.downlink,
        trace=[asdict(step) for step in trace],
    )
    return State(w_next, S_f, past, server, talk.latest), record


def _filtered(chi: Filter, clients: list[int], R: CountedReward, rng: np.random.Generator) -> Filtering:
    if not clients:
        return Filtering(kept=())
    found = chi(clients, R, rng)
    if not isinstance(found, Filtering) or not set(found.kept) <= set(clients):
        raise PluginError(f"the filter must return a Filtering that keeps some of {clients} (got {found!r})")
    return found


def _sorted_ids(ids: Any) -> tuple[int, ...]:
    return tuple(sorted(int(k) for k in ids))


def _why_nobody(S_t: Ids, asked: Sequence[int]) -> str:
    if not len(S_t):
        return "nobody is available"
    return "every update was refused" if asked else "nobody could be selected"


def _mean(values: Sequence[float]) -> float | None:
    finite = [value for value in values if math.isfinite(value)]
    return sum(values) / len(values) if values and len(finite) == len(values) else None
