"""Algorithm 1 of the paper: one round of FilFL, line by line.

A filter round has two shapes: `by_models`, the paper's, and `by_logits`, in which only A_t uploads weights. The module
knows nothing of processes, networks, files or progress bars. What it needs of the outside comes through one door,
`fl.clients`; `Conversation` speaks through it.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
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
        filter_round = by_logits if fl.logits else by_models
        found, A_t, w = filter_round(t, S_t, considered, state, fl, talk, clock)  # lines 4-9
        S_f = eligible = found.S_f
        notes += found.notes
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
            came = found.clients if found else w
            notes.append(f"{_why_nobody(S_t, came, considered or A_t)}: the model stays as it was")

    notes += fl.remarks()
    with clock("filter"):
        sets = (found.clients, S_f, A_t) if found else ()
        rewards = [found.reward(subset) for subset in sets] if found else [None] * 3
        surrogates = [found.surrogate_reward(subset) for subset in sets] if found else [None] * 3
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
    return State(w_next, S_f, past, memory, talk.latest, talk.handed), record


def filters_now(t: int, S_t: Ids, state: State, fl: FilFL) -> bool:
    """Line 3: whether this round filters, by one of the two readings of the paper. Nobody cannot be filtered."""
    return fl.filter is not None and len(S_t) > 0 and WHEN[fl.when](t, fl.h, S_t, state.past)


@dataclass(frozen=True)
class _Found:
    """What a filtering came to: S^f, how it was decided, the rewards, and its cost."""

    clients: Sequence[int]
    """Who was filtered."""
    S_f: tuple[int, ...]
    steps: Sequence[Step]
    R: CountedReward
    weighed: frozenset[int]
    """Whose weights the server has, so that R knows them."""
    surrogate: CountedReward | None
    evaluations: int
    notes: list[str]
    judges: list[int] = field(default_factory=list)
    optimum: float | None = None
    """The reward of the best subset, where it was looked for."""

    def reward(self, subset: Iterable[int]) -> float | None:
        """The reward of a set, for the record. Where clients judge, only what the filter asked anyway: no messages."""
        members = frozenset(subset)
        known = members <= self.weighed and (not self.judges or self.R.knows(members))
        return self.R(members) if members and known else None

    def surrogate_reward(self, subset: Iterable[int]) -> float | None:
        """What the filter went by, where that was not R."""
        members = frozenset(subset)
        return self.surrogate(members) if self.surrogate and members else None

    def trace(self) -> list[dict[str, Any]]:
        return [{**asdict(step), "client": whole_numbers("filter", [step.client])[0]} for step in self.steps]


def by_models(
    t: int, S_t: Ids, considered: Sequence[int], state: State, fl: FilFL, talk: Conversation, clock: Stopwatch
) -> tuple[_Found, list[int], dict[int, Admitted]]:
    """Lines 4-9: all train and send their weights; S^f by what averages well; A_t out of it."""
    w = talk.train(considered)  # lines 4-8
    found = client_filtering(t, S_t, considered, w, state, fl, talk, clock)  # line 9
    return found, talk.select(found.S_f or sorted(w)), w  # line 9: line 17 of Algorithm 2


def by_logits(
    t: int, S_t: Ids, considered: Sequence[int], state: State, fl: FilFL, talk: Conversation, clock: Stopwatch
) -> tuple[_Found, list[int], dict[int, Admitted]]:
    """Lines 4-9 without n uploads: all train, keep their weights and send what these say to V; S^f by whose outputs
    average well; only A_t is asked for weights, and whoever fails to send what it claimed is replaced."""
    assert fl.logits is not None and fl.filter is not None
    z = talk.rehearse(considered)  # lines 4-8
    evaluations, notes = 0, []
    w: dict[int, Admitted] = {}
    while True:
        with clock("filter"):
            clients = [k for k in considered if k in z]
            R = fl.logits.reward(z, state.w, talk.rows()) if clients else None
            filtering, found = _filtered(t, clients, R, fl)  # line 9
        evaluations = max(evaluations, R.evaluations if R else 0)
        A_t, failed = talk.cast(sorted(found[0] or z), w)  # line 9: line 17 of Algorithm 2
        if len(A_t) == fl.K or not failed or (A_t and not failed & talk.liars):
            break
        # Too few of S^f told the truth, and what the filter went by was not so.
        notes.append(f"{len(failed)} of the chosen did not send what they claimed: filtered again without them")
        z = {k: says for k, says in z.items() if k not in failed}
    return (
        _Found(
            clients=clients,
            S_f=tuple(sorted(found[0] - failed)),
            steps=filtering.trace,
            R=fl.reward({k: update.weights.vector for k, update in w.items()}, state.w, None),
            weighed=frozenset(w),
            surrogate=R,
            evaluations=evaluations + talk.checks,
            notes=[*notes, *_notes(clients, found[0], found[0])],
        ),
        A_t,
        w,
    )


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
    with clock("filter"):
        clients = [k for k in considered if k in w]
        loss, judges = fl.judge(fl.seed, t, S_t, talk) if fl.judge else (None, [])
        weights = {k: w[k].weights.vector for k in clients}
        R = fl.reward(weights, state.w, loss)
        surrogate = fl.surrogate(weights, state.w) if fl.surrogate and clients else None
        filtering, found = _filtered(t, clients, surrogate or R, fl)
        S_f = verified(found, clients, R, fl.verify) if fl.verify else found[0]
    # Before anything that only the record wants.
    evaluations = R.evaluations + (surrogate.evaluations if surrogate else 0)
    optimum = None
    if fl.optimum and clients:
        with clock("optimum"):
            optimum = R(_sets_of(opt(clients, R), clients)[0])
    return _Found(
        clients=clients,
        S_f=tuple(sorted(S_f)),
        steps=filtering.trace,
        R=R,
        weighed=frozenset(clients),
        surrogate=surrogate,
        evaluations=evaluations,
        notes=_notes(clients, S_f, found[0]),
        judges=judges,
        optimum=optimum,
    )


def _filtered(
    t: int, clients: Sequence[int], goes_by: CountedReward | None, fl: FilFL
) -> tuple[Filtering, list[frozenset[int]]]:
    """What the filter decided; and as sets, what it kept and its runners-up."""
    assert fl.filter is not None
    if not clients or goes_by is None:
        return Filtering(kept=()), [frozenset()]
    filtering = fl.filter(clients, goes_by, stream(fl.seed, t, "filter"))
    return filtering, _sets_of(filtering, clients)


def _notes(clients: Sequence[int], S_f: frozenset[int], kept: frozenset[int]) -> list[str]:
    notes = [] if S_f == kept else [f"verified: {len(S_f)} clients instead of the {len(kept)} filtered"]
    return notes if S_f or not clients else [*notes, "the filter kept nobody: chosen from all that trained"]


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


def _why_nobody(S_t: Ids, came: Collection[int], asked: Sequence[int]) -> str:
    if not len(S_t):
        return "nobody is available"
    return "every update was refused" if asked and not came else "nobody could be selected"


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values and all(map(math.isfinite, values)) else None
