"""What the server is made of, what it carries from round to round, and what it records."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from filfl.aggregation.base import Admitted, Aggregation, Memory
from filfl.availability.base import NO_IDS, Availability, Ids
from filfl.core.clients import Clients
from filfl.core.evidence import Evidence, FilterMemory
from filfl.core.exchange import Exchange
from filfl.core.guard import Guard
from filfl.core.selector import Latest, Selector
from filfl.logits.doubts import Doubts
from filfl.logits.messages import Recipients
from filfl.weights import Layout, Weights

MAX_LISTED = 10_000
"""The largest number of available clients that a record lists. A million ids per round would dominate the file."""


@dataclass(frozen=True)
class Past:
    """The past rounds, as far as the schedule needs them. S_0 is empty, so that the first round filters."""

    previous: Ids = field(default_factory=lambda: NO_IDS)
    """S_(t-1)."""
    seen: Ids = field(default_factory=lambda: NO_IDS)
    """The clients that were available at the last filtering."""
    filtered_at: int = 0
    """The round of the last filtering; 0 is never."""


START = Past()


class Schedule(Protocol):
    """Line 3 of Algorithm 1: whether round t filters."""

    def __call__(self, t: int, S_t: Ids, past: Past, /) -> bool: ...


class Problem(Protocol):
    """An optimisation problem whose objective F is known."""

    def filter_terms(self, v: Tensor, z: Tensor, S_f: Sequence[int], /) -> dict[str, float]:
        """What Section 4 says about a filtering, by name: v is v_t, the mean of all clients, and z is z_t, that of
        S^f."""
        ...


@dataclass(frozen=True)
class State:
    """What the server carries from round to round."""

    w: Weights
    S_f: tuple[int, ...] = ()
    selected: tuple[int, ...] = ()
    """A_(t-1)."""
    past: Past = START
    memory: Memory = field(default_factory=dict)
    """What the aggregation remembers."""
    latest: Latest = field(default_factory=dict)
    """What the selection remembers: each client's latest update, or its latest logits on V."""
    recipients: Recipients = field(default_factory=Recipients)
    """The clients that have received V, with the logits transport."""
    doubts: Doubts = field(default_factory=Doubts)
    """The clients that did not upload what they claimed, with the logits transport."""
    filter_memory: FilterMemory = field(default_factory=dict)
    """What the filter remembers about clients."""
    evidence: Evidence = field(default_factory=Evidence)
    """The running estimates of the clients' values."""

    def after(self, outcome: "Outcome", memory: Memory, w: Weights) -> "State":
        """The state after a round with this outcome and this new model."""
        return State(
            w=w,
            S_f=outcome.S_f,
            selected=tuple(outcome.A_t),
            past=outcome.past,
            memory=memory,
            latest=outcome.latest,
            recipients=outcome.recipients,
            doubts=self.doubts if outcome.doubts is None else outcome.doubts,
            filter_memory=self.filter_memory if outcome.filter_memory is None else outcome.filter_memory,
            evidence=outcome.assessment.evidence if outcome.assessment else self.evidence,
        )


@dataclass(frozen=True)
class Rewards:
    """One reward for each of three sets; None where it is unknown."""

    all: float | None = None
    """Of all clients that were filtered."""
    filtered: float | None = None
    """Of S^f."""
    selected: float | None = None
    """Of A_t as a set."""


@dataclass(frozen=True)
class Gain:
    """How much lower the loss of S^f is than that of all clients, on samples that were not used to choose S^f."""

    mean: float
    stderr: float


@dataclass(frozen=True)
class Assessment:
    """What a filtering measured about the clients and about the filter."""

    evidence: Evidence
    values: list[dict[str, Any]] = field(default_factory=list)
    """For each client its value with standard error, and the running estimate over the filterings so far."""
    honest_gain: Gain | None = None
    warnings: list[str] = field(default_factory=list)
    """About the filtering set."""


@dataclass(frozen=True)
class Outcome:
    """What a round decided and received, before the aggregation. The fields after `notes` belong to filter rounds."""

    S_f: tuple[int, ...]
    eligible: tuple[int, ...] | None
    """The part of S^f that is available; None where nothing filters."""
    A_t: list[int]
    updates: Mapping[int, Admitted]
    """The weights that the server has received in this round."""
    past: Past
    latest: Latest
    recipients: Recipients
    notes: list[str] = field(default_factory=list)

    did_filter: bool = False
    considered: list[int] = field(default_factory=list)
    """The clients that trained for the filtering, in the order of Shuffle(S_t)."""
    filtered_clients: Sequence[int] = ()
    """Those of them that the filter could use."""
    rewards: Rewards = Rewards()
    surrogates: Rewards = Rewards()
    """The same by the reward that the filter maximised, where that was not the true one."""
    optimum: float | None = None
    """The reward of the best subset, where it was searched for."""
    evaluations: int = 0
    """Inferences over V that the filter needed."""
    half_evaluations: int = 0
    """How many of these were in half precision."""
    trace: list[dict[str, Any]] = field(default_factory=list)
    judges: list[int] = field(default_factory=list)
    """The clients on whose data the sets were judged."""
    filter_memory: FilterMemory | None = None
    """What the filter wants to remember; None keeps what it remembered."""
    assessment: Assessment | None = None
    doubts: Doubts | None = None
    """The doubts after this round; None leaves them as they were."""

    @property
    def averaged(self) -> list[Admitted]:
        """The updates to average; a client that was selected twice counts twice."""
        return [self.updates[k] for k in self.A_t if k in self.updates]


class FilterRound(Protocol):
    """Lines 4-9 of Algorithm 1: train, filter and select. See `filfl.filtering.by_models` and `by_logits`."""

    def __call__(
        self, t: int, S_t: Ids, considered: list[int], state: State, selector: Selector, exchange: Exchange, /
    ) -> Outcome: ...


class Screen(Protocol):
    """Which of the updates that would be averaged in a round are refused, and why. See `filfl.filtering.screen`."""

    def __call__(self, updates: Mapping[int, Admitted], w_t: Weights, /) -> dict[int, str]: ...


@dataclass(frozen=True)
class Server:
    """What Algorithm 1 requires. E and eta belong to the clients, chi to the filter round."""

    seed: int
    clients: Clients
    layout: Layout
    availability: Availability
    schedule: Schedule
    filter_round: FilterRound | None
    """None is federated learning without filtering."""
    cap: int | None
    """n: the largest number of clients considered in a filtering; None means no limit."""
    selector: Selector
    """K, and how A_t is selected."""
    aggregation: Aggregation
    guard: Guard = field(default_factory=Guard)
    """How far replies may be from those of other clients."""
    screen: Screen | None = None
    """Refuses updates before they are averaged; None refuses none."""
    problem: Problem | None = None
    """The objective F, where it is known: for the record only."""
    faulty: frozenset[int] = frozenset()
    """The faulty clients, where they are known, as in a simulation: for the record only."""
    warnings: tuple[str, ...] = ()
    """About the filtering set, before the first round."""

    def filters(self, t: int, S_t: Ids, state: State) -> bool:
        """Line 3: whether this round filters. An empty S_t is never filtered."""
        return self.filter_round is not None and len(S_t) > 0 and self.schedule(t, S_t, state.past)


@dataclass(frozen=True)
class Record:
    """What happened in one round. Everything in it is reproducible; seconds are stored elsewhere."""

    round: int
    did_filter: bool
    available: list[int] | None
    """S_t; None if it has all clients or more than `MAX_LISTED`. It can be computed again from (t, seed)."""
    num_available: int
    considered: list[int]
    """The clients that trained for a filtering, in the order in which the filter visits them."""
    filtered: list[int] | None
    """The part of S^f that is available; None where nothing filters, so that all available clients are eligible."""
    num_filtered: int
    """The number of clients that could be selected."""
    selected: list[int]
    refused: dict[int, str]
    notes: list[str]
    selected_train_loss: float | None
    """The mean over the selected clients of their loss during local training. Other clients are selected in the next
    round, and the model changes while they train: it is not the loss of the global model."""
    reward_all: float | None
    reward_filtered: float | None
    reward_selected: float | None
    """Of the selected clients as a set: a client that was drawn twice counts once. With the logits transport, the
    server knows the true reward only of sets whose weights were uploaded: usually of this one alone."""
    reward_optimum: float | None
    """The best of all subsets, where it was searched for."""
    surrogate_all: float | None
    surrogate_filtered: float | None
    surrogate_selected: float | None
    """The surrogate reward of the same three sets, where the filter maximised a surrogate."""
    evaluations: int
    """Inferences over the filtering set that the filter needed, by the server or, with the logits transport, by
    clients; with the logits transport also one per upload that was checked."""
    half_evaluations: int
    """How many of these were in half precision (`execution.precision`). The others were in float32, among them those of
    decisions that half precision could not make."""
    uplink_bytes: int
    downlink_bytes: int
    trace: list[dict[str, Any]]
    judges: list[int]
    """The clients on whose data the sets were judged; empty where the server has its own data."""
    values: list[dict[str, Any]]
    """Per filtered client `value` and `stderr` of this filtering, `mean` and `mean_stderr` over the filterings so far,
    and how much better it was than no update (`update`, `update_stderr`); empty where they were not measured."""
    honest_gain: float | None
    """How much lower the loss of S^f is than that of all clients, chosen on one half of V and measured on the other."""
    honest_gain_stderr: float | None
    metrics: dict[str, float]
    """What can be measured only within a round: the filtering gap, and how well values find faulty clients. The metrics
    of the test are added to them."""

    @classmethod
    def of(cls, t: int, S_t: Ids, outcome: Outcome, exchange: Exchange, server: Server, notes: list[str]) -> "Record":
        """The record of round t; `notes` are those that the server adds to the outcome's."""
        eligible = outcome.eligible
        gain = outcome.assessment.honest_gain if outcome.assessment else None
        return cls(
            round=t,
            did_filter=outcome.did_filter,
            available=S_t.tolist() if _lists(S_t, server) else None,
            num_available=len(S_t),
            considered=outcome.considered,
            filtered=None if eligible is None else list(eligible),
            num_filtered=len(S_t) if eligible is None else len(eligible),
            selected=outcome.A_t,
            refused=dict(sorted(exchange.refused.items())),
            notes=[*outcome.notes, *(outcome.assessment.warnings if outcome.assessment else []), *notes],
            selected_train_loss=_mean([u.train_loss for u in outcome.averaged if math.isfinite(u.train_loss)]),
            reward_all=outcome.rewards.all,
            reward_filtered=outcome.rewards.filtered,
            reward_selected=outcome.rewards.selected,
            reward_optimum=outcome.optimum,
            surrogate_all=outcome.surrogates.all,
            surrogate_filtered=outcome.surrogates.filtered,
            surrogate_selected=outcome.surrogates.selected,
            evaluations=outcome.evaluations,
            half_evaluations=outcome.half_evaluations,
            uplink_bytes=exchange.uplink,
            downlink_bytes=exchange.downlink,
            trace=outcome.trace,
            judges=outcome.judges,
            values=outcome.assessment.values if outcome.assessment else [],
            honest_gain=gain.mean if gain else None,
            honest_gain_stderr=gain.stderr if gain else None,
            metrics={**filter_terms(outcome, server), **value_auc(outcome, server)} if outcome.did_filter else {},
        )

    def table(self) -> dict[str, Any]:
        return asdict(self)


def filter_terms(outcome: Outcome, server: Server) -> dict[str, float]:
    """delta_t = F(v_t) - F(z_t), Eq. (5) of Section 4.1, and other terms of that section, where they can be computed.

    v_t = sum_k p_k v_t^k is the mean of the weights of all N clients after training (p_k = 1/N), z_t the mean of S^f.
    So F must be known, and every client must have trained. A filter that keeps all clients has a gap of 0, a useful
    filter a positive one, a harmful filter a negative one. On V instead of F, the gap is
    reward_filtered - reward_all.
    """
    w = outcome.updates
    if server.problem is None or len(w) < server.clients.num_clients or not outcome.S_f:
        return {}
    v, z = (torch.stack([w[k].weights.vector for k in ids]).double().mean(dim=0) for ids in (sorted(w), outcome.S_f))
    return server.problem.filter_terms(v.cpu(), z.cpu(), outcome.S_f)


def value_auc(outcome: Outcome, server: Server) -> dict[str, float]:
    """How well the running estimates find the faulty clients, where these are known."""
    found = outcome.assessment.evidence.auc(server.faulty) if outcome.assessment and outcome.assessment.values else None
    return {} if found is None else {"value_auc": found}


def _lists(S_t: Ids, server: Server) -> bool:
    """Whether a record lists the available clients."""
    if not server.availability.reproducible:
        return True
    return len(S_t) < server.clients.num_clients and len(S_t) <= MAX_LISTED


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
