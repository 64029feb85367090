"""What the server is given, what it carries from round to round, and what it writes down."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from filfl.aggregation import Aggregation, ServerState
from filfl.availability import Availability
from filfl.availability.base import Ids
from filfl.clients import Clients, Failure, Job, Sheet
from filfl.evaluation import Samples
from filfl.filtering import Filter
from filfl.filtering.judges import Judge, LossOf
from filfl.filtering.when import NOBODY, START, Past
from filfl.logits import LOSS_ROOM, Form, Packed
from filfl.rng import stream
from filfl.selection import Selection
from filfl.weights import Layout, Weights


class CountedReward(Protocol):
    """R over the subsets of the clients that trained, with a count of what it cost."""

    evaluations: int

    def __call__(self, subset: frozenset[int], /) -> float: ...

    def knows(self, subset: frozenset[int], /) -> bool:
        """Whether the reward of this set costs nothing more."""
        ...


@dataclass(frozen=True)
class Handed:
    """Who was sent V, and which V that was."""

    digest: str = ""
    to: Ids = field(default_factory=lambda: NOBODY)


@dataclass(frozen=True)
class ByLogits:
    """What filter rounds require in which clients keep their weights and send what these say to V."""

    V: Samples
    """Without targets: it is public."""
    digest: str
    outputs: tuple[int, ...]
    """The shape of what a model says to one sample."""
    form: Form
    part: int | None
    """How many samples of V a round goes by; None is all of them."""
    says: Callable[[Sequence[Weights], Samples], list[Tensor | Failure]]
    """(weights, samples) -> what each of these models says to them"""
    reward: Callable[[Mapping[int, Tensor], Weights, Tensor | None], CountedReward]
    """(outputs of the clients, w_t, which samples of V) -> what the filter goes by"""
    loss: Callable[[Tensor, Tensor | None], float]
    """(outputs, which samples of V) -> their loss"""

    def sheet(self, seed: int, t: int, ids: Sequence[int], handed: Handed) -> Sheet:
        """What these clients are asked in round t."""
        m, rows = len(self.V), None
        if self.part is not None and self.part < m:
            rows = torch.from_numpy(np.sort(stream(seed, t, "part-of-V").permutation(m)[: self.part]))
        has = set(handed.to.tolist()) if handed.digest == self.digest else set()
        shape = (m if rows is None else len(rows), *self.outputs)
        return Sheet(self.V, self.digest, frozenset(ids) - has, rows, shape, self.form)

    def lie(self, claim: Packed, outputs: Tensor, sheet: Sheet) -> str | None:
        """Why a client whose weights say `outputs` did not tell the truth; None where it did."""
        if lie := sheet.form.lie(claim, outputs):
            return lie
        # What two machines differ in is chance, and means nothing over many samples; what somebody gains by, does.
        both = (claim, sheet.form.pack(outputs))
        told, true = (self.loss(sheet.form.unpack(each, sheet.shape, outputs.device), sheet.rows) for each in both)
        if abs(told - true) <= LOSS_ROOM * max(1.0, true):
            return None
        return f"its weights do not say what it claimed: by it V's loss is {told:.4g}, and by them {true:.4g}"


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
    reward: Callable[[Mapping[int, Tensor], Weights, LossOf | None], CountedReward]
    """(trained weights of the clients, w_t, the judge's loss) -> R; without a judge, on the server's filtering set"""
    judge: Judge | None
    """On whose data a filtering goes by; None is the server's own."""
    when: str
    h: int
    n: int | None
    """The cap on the clients considered in a filtering; None is no cap."""
    selection: Selection
    K: int
    job: Callable[[int], Job]
    aggregation: Aggregation
    surrogate: Callable[[Mapping[int, Tensor], Weights], CountedReward] | None = None
    """(trained weights of the clients, w_t) -> what the filter goes by instead of R; None is R itself"""
    logits: ByLogits | None = None
    """Where filter rounds move logits instead of models."""
    verify: int = 0
    """How many of the sets found on the surrogate are judged by R, beside keeping all."""
    optimum: bool = False
    """Whether a filtering also looks for the best of all subsets, for the record alone."""
    objective: Callable[[Tensor], float] | None = None
    """F of Eq. (1), up to a constant, where it is known: for the record alone."""
    remarks: Callable[[], list[str]] = list
    """What the door has to say of this round beside the answers, for the record alone."""


@dataclass(frozen=True)
class State:
    """What the server carries from round to round."""

    w: Weights
    S_f: tuple[int, ...] = ()
    past: Past = START
    memory: ServerState = field(default_factory=dict)
    """What the aggregation remembers."""
    latest: Mapping[int, Tensor] = field(default_factory=dict)
    """How each client last changed the model, or what it said to V, where the selection goes by that."""
    handed: Handed = Handed()
    """Who has V, where filter rounds move logits."""


MOST_LISTED = 10_000
"""Available clients that a record lists; a million ids a round would be most of what a run writes."""


@dataclass(frozen=True)
class Record:
    """What happened in one round. Everything in it is reproducible; seconds are kept elsewhere."""

    round: int
    did_filter: bool
    available: list[int] | None
    """S_t; None where it is everybody, or more than `MOST_LISTED`: the availability gives them again for (t, seed)."""
    num_available: int
    considered: list[int]
    """The clients that a filtering visited, in its order."""
    filtered: list[int] | None
    """The part of S^f that is available; None where nothing filters, so that everybody available may be chosen."""
    num_filtered: int
    """How many may be chosen."""
    selected: list[int]
    refused: dict[int, str]
    notes: list[str]
    train_loss: float | None
    reward_all: float | None
    reward_filtered: float | None
    reward_selected: float | None
    """Of the selected as a set: a client that was drawn twice counts once here. Where rounds move logits, the server
    knows true rewards only of sets whose weights were uploaded: mostly of this one alone."""
    reward_optimum: float | None
    """The best of all subsets, where it was looked for."""
    surrogate_all: float | None
    surrogate_filtered: float | None
    surrogate_selected: float | None
    """What the surrogate says of the same three sets, where the filter went by one."""
    evaluations: int
    """Inferences over the filtering dataset that the filter needed, by the server or, with logits, by clients; with
    logits also one for every upload that was checked."""
    uplink_bytes: int
    downlink_bytes: int
    trace: list[dict[str, Any]]
    judges: list[int]
    """The clients on whose data the filtering went by; nobody where the server has its own."""
    metrics: dict[str, float]
    """What can be measured only within a round: the filtering gap. Those of the test join them."""

    def table(self) -> dict[str, Any]:
        return asdict(self)
