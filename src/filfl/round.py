"""Algorithm 1 of the paper: one round of FilFL, line by line.

It knows nothing of processes, networks, files or progress bars. What it needs of the outside comes through one door,
`fl.clients`; `Conversation` speaks through it.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from filfl.aggregation import Admitted
from filfl.availability.base import Ids, among
from filfl.clock import Stopwatch
from filfl.conversation import Conversation, whole_numbers
from filfl.errors import PluginError
from filfl.filtering import Filtering, Step, opt
from filfl.filtering.verify import verified
from filfl.filtering.when import WHEN, Past
from filfl.rng import stream
from filfl.server import MOST_LISTED, CountedReward, FilFL, Record, State


def filfl_round(t: int, state: State, fl: FilFL, clock: Stopwatch) -> tuple[State, Record]:
    """Lines 3-19 of Algorithm 1: (t, state) -> (state, record)."""
    S_t = fl.availability(t, fl.num_clients, fl.seed)
    talk = Conversation(t, state, fl, clock)
    notes: list[str] = []
    eligible: tuple[int, ...] | None

    if filters_now(t, S_t, state, fl):  # line 3
        considered = [int(k) for k in stream(fl.seed, t, "shuffle").permutation(S_t)[: fl.n]]
        w = talk.train(considered)  # lines 4-8
        found = client_filtering(t, S_t, considered, w, state, fl, talk, clock)  # line 9
        S_f = eligible = found.S_f
        if found.overruled:
            notes.append(found.overruled)
        if w and not S_f:
            notes.append("the filter kept nobody: chosen from all that trained")
        A_t = talk.select(S_f or sorted(w))  # line 9: line 17 of Algorithm 2
        past = Past(previous=S_t, seen=S_t, filtered_at=t)
    else:  # line 10
        considered, found = [], None
        S_f = state.S_f
        eligible = still_here(S_f, S_t) if fl.filter is not None else None
        if eligible == () and len(S_t):
            notes.append("nobody of S^f is available: chosen from all available")
        A_t = talk.select(eligible or S_t)  # line 11
        w = talk.train(sorted(set(A_t)))  # lines 12-16
        past = replace(state.past, previous=S_t) if fl.filter is not None else state.past

    averaged = [w[k] for k in A_t if k in w]
    with clock("aggregate"):
        memory, w_next = state.memory, state.w
        if averaged:
            memory, w_next = fl.aggregation(state.memory, state.w, averaged)  # lines 18-19
        else:
            notes.append(f"{_why_nobody(S_t, w, considered or A_t)}: the model stays as it was")

    notes += fl.remarks()
    with clock("filter"):
        rewards = [found.reward(subset) if found else None for subset in (w, S_f, A_t)]
        surrogates = [found.surrogate_reward(subset) if found else None for subset in (w, S_f, A_t)]
    record = Record(
        round=t,
        did_filter=found is not None,
        available=None if len(S_t) == fl.num_clients or len(S_t) > MOST_LISTED else S_t.tolist(),
        num_available=len(S_t),
        considered=considered,
        filtered=None if eligible is None else list(eligible),
        num_filtered=len(S_t) if eligible is None else len(eligible),
        selected=A_t,
        refused=dict(sorted(talk.refused.items())),
        notes=notes,
        train_loss=_mean([update.train_loss for update in averaged]),
        reward_all=rewards[0],
        reward_filtered=rewards[1],
        reward_selected=rewards[2],
        reward_optimum=found.optimum if found else None,
        surrogate_all=surrogates[0],
        surrogate_filtered=surrogates[1],
        surrogate_selected=surrogates[2],
        evaluations=found.evaluations if found else 0,
        uplink_bytes=talk.door.uplink,
        downlink_bytes=talk.door.downlink,
        trace=found.trace() if found else [],
        judges=found.judges if found else [],
        metrics=filtering_gap(w, S_f, fl) if found else {},
    )
    return State(w_next, S_f, past, memory, talk.latest), record


def filters_now(t: int, S_t: Ids, state: State, fl: FilFL) -> bool:
    """Line 3: whether this round filters, by one of the two readings of the paper. Nobody cannot be filtered."""
    return fl.filter is not None and len(S_t) > 0 and WHEN[fl.when](t, fl.h, S_t, state.past)


@dataclass(frozen=True)
class _Found:
    """What a filtering came to: S^f, how it was decided, the rewards, and its cost."""

    S_f: tuple[int, ...]
    steps: Sequence[Step]
    R: CountedReward
    surrogate: CountedReward | None
    overruled: str
    """Why S^f is not what the filter kept; empty where it is."""
    evaluations: int
    judges: list[int]
    optimum: float | None
    """The reward of the best subset, where it was looked for."""

    def reward(self, subset: Iterable[int]) -> float | None:
        """The reward of a set, for the record. Where clients judge, only what the filter asked anyway: no messages."""
        members = frozenset(subset)
        return self.R(members) if members and (not self.judges or self.R.knows(members)) else None

    def surrogate_reward(self, subset: Iterable[int]) -> float | None:
        """What the filter went by, where that was not R."""
        members = frozenset(subset)
        return self.surrogate(members) if self.surrogate and members else None

    def trace(self) -> list[dict[str, Any]]:
        return [{**asdict(step), "client": whole_numbers("filter", [step.client])[0]} for step in self.steps]


def client_filtering(
    t: int,
    S_t: Ids,
    considered: Sequence[int],
    w: Mapping[int, Admitted],
    state: State,
    fl: FilFL,
    talk: Conversation,
    clock: Stopwatch,
) -> _Found:
    """Line 9: Algorithm 2 over the clients whose weights came through, in the order of Shuffle(S_t)."""
    assert fl.filter is not None
    with clock("filter"):
        clients = [k for k in considered if k in w]
        loss, judges = fl.judge(fl.seed, t, S_t, talk) if fl.judge else (None, [])
        weights = {k: w[k].weights.vector for k in clients}
        R = fl.reward(weights, state.w, loss)
        surrogate = fl.surrogate(weights, state.w) if fl.surrogate and clients else None
        filtering = fl.filter(clients, surrogate or R, stream(fl.seed, t, "filter")) if clients else Filtering(kept=())
        found = _sets_of(filtering, clients)
        S_f = verified(found, clients, R, fl.verify) if fl.verify else found[0]
    # Before anything that only the record wants.
    evaluations = R.evaluations + (surrogate.evaluations if surrogate else 0)
    optimum = None
    if fl.optimum and clients:
        with clock("optimum"):
            optimum = R(_sets_of(opt(clients, R), clients)[0])
    return _Found(
        S_f=tuple(sorted(S_f)),
        steps=filtering.trace,
        R=R,
        surrogate=surrogate,
        overruled="" if S_f == found[0] else f"verified: {len(S_f)} clients instead of the {len(found[0])} filtered",
        evaluations=evaluations,
        judges=judges,
        optimum=optimum,
    )


def filtering_gap(w: Mapping[int, Admitted], S_f: Sequence[int], fl: FilFL) -> dict[str, float]:
    """delta_t = F(v_t) - F(z_t), Eq. (5) of Section 4.1, where it can be computed.

    v_t = sum_k p_k v_t^k is the mean of what all N clients trained to (p_k = 1/N), z_t that of S^f. So F must be known,
    and everybody must have trained: all are available, and no cap leaves anybody out. A filter that keeps all has 0, a
    good one more, one that does harm less. On the server's V instead of F, the gap is reward_filtered - reward_all.
    """
    if fl.objective is None or len(w) < fl.num_clients or not S_f:
        return {}
    v, z = (torch.stack([w[k].weights.vector for k in ids]).double().mean(dim=0) for ids in (sorted(w), S_f))
    return {"filtering_gap": fl.objective(v) - fl.objective(z)}


def _sets_of(filtering: Filtering, clients: Sequence[int]) -> list[frozenset[int]]:
    """The set that a filter kept and its runners-up, once they are what a filter may answer with."""
    if not isinstance(filtering, Filtering):
        raise PluginError(f"the filter must return a Filtering (got {filtering!r})")
    found = [whole_numbers("filter", kept) for kept in (filtering.kept, *filtering.runners_up)]
    for kept in found:
        if not set(kept) <= set(clients) or len(set(kept)) < len(kept):
            raise PluginError(f"the filter must keep some of {clients}, each once (got {kept})")
    return [frozenset(kept) for kept in found]


def still_here(S_f: Sequence[int], S_t: Ids) -> tuple[int, ...]:
    """Who of the last filtering may be chosen in a round without one."""
    return tuple(k for k, here in zip(S_f, among(S_f, S_t), strict=True) if here)


def _why_nobody(S_t: Ids, w: Mapping[int, Admitted], asked: Sequence[int]) -> str:
    if not len(S_t):
        return "nobody is available"
    return "every update was refused" if asked and not w else "nobody could be selected"


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values and all(map(math.isfinite, values)) else None
