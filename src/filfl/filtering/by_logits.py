"""A filter round with the logits transport: only A_t uploads weights. Not in the paper; see docs/logits.md.

All considered clients train, keep their weights and reply with their logits on V. The filter maximises the ensemble
reward over these logits. The selected clients upload their weights, which must match the logits they claimed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import torch
from torch import Tensor

from filfl.aggregation.base import Admitted
from filfl.availability.base import Ids
from filfl.core.clients import Failure
from filfl.core.exchange import Exchange
from filfl.core.selector import Latest, Selector
from filfl.core.server import Assessment, Outcome, Past, Rewards, State
from filfl.errors import ConfigError, one_line
from filfl.evaluation import Samples
from filfl.filtering.assessment import Assess
from filfl.filtering.base import FilterFunction, Filtering
from filfl.filtering.by_models import empty_note, memory_after, prepared, rewards_of, run_filter, trace_of
from filfl.filtering.ensemble import EnsembleReward
from filfl.filtering.filtering_set import FilteringSet
from filfl.filtering.rewards import SIGNIFICANT, equal_weights, standardised
from filfl.logits.check import logit_mismatch, loss_mismatch
from filfl.logits.doubts import Doubts
from filfl.logits.encoding import EncodedLogits, Encoding
from filfl.logits.messages import LogitReply, LogitRequest, Recipients
from filfl.rng import stream
from filfl.weights import Mismatch, Weights

AGAIN = "clients did not upload what they claimed; filtered again without them"

STANDS_OUT = 4.0
"""By how many standard errors of the loss on V the best claim must be better than the second best for a check, although
its client is not selected. True claims rarely are: each check costs one more upload."""


@dataclass
class _Round:
    """What a filter round has received so far."""

    request: LogitRequest
    claims: Mapping[int, LogitReply]
    latest: Latest
    updates: dict[int, Admitted] = field(default_factory=dict)
    """Uploaded weights that match the claimed logits."""
    gone: set[int] = field(default_factory=set)
    """Clients that did not upload."""
    mismatched: set[int] = field(default_factory=set)
    """Clients whose uploaded weights do not match their claim."""
    checks: int = 0
    """Uploads that were evaluated on V."""

    @property
    def failed(self) -> set[int]:
        return self.gone | self.mismatched


class ByLogits:
    """All considered clients train and send logits on V; only the selected clients send weights.

    filter: chi-GF, or any other filter. V: the filtering set; its inputs are public. encoding: of the logits.
    part: how many samples of V a round uses, different ones in each round; None is all of V.
    empty_is_global: whether the reward of the empty set is that of the global model, instead of 0.
    assess: what else is measured; None is nothing.
    """

    def __init__(
        self,
        seed: int,
        filter: FilterFunction,
        V: FilteringSet,
        encoding: Encoding,
        part: int | None = None,
        empty_is_global: bool = False,
        assess: Assess | None = None,
    ) -> None:
        self.seed, self.filter, self.V, self.encoding = seed, filter, V, encoding
        self.part, self.empty_is_global, self.assess = part, empty_is_global, assess
        self.output_shape = V.output_shape()
        if encoding.top is not None and (len(self.output_shape) != 1 or encoding.top >= self.output_shape[0]):
            found = (
                f"{self.output_shape[0]} classes"
                if len(self.output_shape) == 1
                else f"outputs of shape {list(self.output_shape)}"
            )
            raise ConfigError(
                f"filter.top must be below the number of classes of the model, which has {found} (got {encoding.top})"
            )
        self._public: tuple[Samples, str] = V.public()

    def __call__(
        self, t: int, S_t: Ids, considered: list[int], state: State, selector: Selector, exchange: Exchange
    ) -> Outcome:
        request = self.request(t, considered, state.recipients)
        claims, z, replied = exchange.train_for_logits(considered, request)  # lines 4-8
        this = _Round(request, claims, selector.after_logits(state.latest, z))
        A_t: list[int] = []
        notes: list[str] = []
        wanted, evaluations = selector.K, 0
        while True:
            failed = this.failed
            clients = [k for k in considered if k in z and k not in failed | state.doubts.ignored]
            with exchange.clock("filter"):  # line 9: Algorithm 2
                R = self.surrogate({k: z[k] for k in clients}, state.w, request.rows)
                prepared(R, selector.K, state.filter_memory)
                filtering, S_f = self.filtered(t, clients, R, state.doubts)
            evaluations = max(evaluations, R.evaluations)
            A_t = [k for k in A_t if k in (S_f or clients)]
            pool = [k for k in sorted(S_f or clients) if selector.with_replacement or k not in A_t]
            missing = wanted - len(A_t)
            selected = (  # line 17
                selector(pool, exchange, this.latest, state.selected, missing, len(notes)) if missing else []
            )
            if len(selected) < min(missing, len(pool)):
                wanted = len(A_t) + len(selected)  # the selection chose fewer, and is not asked for more
            self.collect(selected, this, exchange)
            this.latest = selector.after_updates(this.latest, this.updates, exchange.w_t)
            if this.failed == failed:
                self.collect(self.decisive(S_f, clients, R, this), this, exchange)
            A_t = sorted([*A_t, *(k for k in selected if k in this.updates)])
            if this.failed == failed:
                break
            # S^f was chosen by claims that were not kept, so the filter decides again without them.
            notes.append(f"{len(this.failed - failed)} {AGAIN}")
        assessment = Assessment(state.evidence)
        if self.assess and clients:
            with exchange.clock("assess"):
                assessment = self.assess(t, self.filter, clients, S_f, R, R, state.evidence)
        with exchange.clock("filter"):
            return Outcome(
                S_f=tuple(sorted(S_f)),
                eligible=tuple(sorted(S_f)),
                A_t=A_t,
                updates=this.updates,
                past=Past(previous=S_t, seen=S_t, filtered_at=t),
                latest=this.latest,
                recipients=state.recipients.adding(request.digest, replied),
                notes=[*notes, *filtering.notes, *empty_note(clients, S_f)],
                did_filter=True,
                considered=considered,
                filtered_clients=clients,
                rewards=self.true_rewards(this, clients, S_f, A_t, state.w),
                surrogates=rewards_of(R, clients, S_f, A_t) if clients else Rewards(),
                evaluations=evaluations + this.checks,
                trace=trace_of(filtering),
                filter_memory=memory_after(state.filter_memory, filtering),
                assessment=assessment,
                doubts=state.doubts.after(z.keys(), this.updates.keys(), this.gone, this.mismatched),
            )

    def filtered(
        self, t: int, clients: list[int], R: EnsembleReward, doubts: Doubts
    ) -> tuple[Filtering, frozenset[int]]:
        """S^f. A client that is doubted does not decide about others: it is kept if it does not lower the reward of
        those that are kept without it."""
        trusted = [k for k in clients if k not in doubts] or clients
        filtering, (S_f, *_) = run_filter(self.filter, trusted, R, self.seed, t)
        for k in clients:
            if k not in trusted and S_f and R(S_f | {k}) >= R(S_f):
                S_f |= {k}
        return filtering, S_f

    def decisive(self, S_f: frozenset[int], clients: list[int], R: EnsembleReward, this: _Round) -> list[int]:
        """The clients of S^f whose claims were not checked, and without which S^f is significantly worse than all
        clients, or whose own claim is significantly better than that of any other client.

        S^f is there because of what such a client claimed, so it must upload what it claimed, as the selected clients
        do. Its weights are not averaged.
        """
        unchecked = [k for k in R.clients if k in S_f and k not in this.updates]
        if not unchecked or len(S_f) < 2 or len(S_f) == len(clients):  # where all are kept, no claim has decided
            return []
        known = np.array(R.clients)
        kept, without = np.isin(known, list(S_f)), known != np.array(unchecked)[:, None]
        filtered, everybody = (R.losses_at(equal_weights(sets)) for sets in (kept & without, without))
        found = dict(zip(unchecked, standardised(filtered - everybody) > SIGNIFICANT, strict=True))
        own = R.capped().losses_at(np.eye(len(known)))
        best, second, *_ = np.argsort(own.mean(axis=1), kind="stable")
        best_stands_out = standardised(own[second] - own[best]) > STANDS_OUT
        return [k for k in unchecked if found[k] or (best_stands_out and k == known[best])]

    def request(self, t: int, ids: list[int], recipients: Recipients) -> LogitRequest:
        """What these clients are asked for in round t."""
        V, digest = self._public
        m, rows = len(V), None
        if self.part is not None and self.part < m:
            rows = torch.from_numpy(np.sort(stream(self.seed, t, "part-of-V").permutation(m)[: self.part]))
        new = frozenset(ids).difference(recipients.of(digest).tolist())
        shape = (m if rows is None else len(rows), *self.output_shape)
        return LogitRequest(V, digest, new, rows, shape, self.encoding)

    def collect(self, clients: list[int], this: _Round, exchange: Exchange) -> None:
        """Receive the weights that these clients kept, unless they are there, and refuse those that do not match."""
        ids = sorted(set(clients) - this.updates.keys())
        with exchange.clock("upload"):
            admitted, absent = exchange.upload(ids)
            outputs = self.V.outputs_or_failures([each.weights for each in admitted.values()], this.request.samples)
            for (k, update), z in zip(admitted.items(), outputs, strict=True):
                if reason := self.mismatch(this.claims[k], update, z, this.request):
                    exchange.refuse(k, reason)
                else:
                    this.updates[k] = update
        this.checks += len(admitted)
        this.gone |= absent
        this.mismatched |= set(ids) - this.updates.keys() - absent

    def mismatch(
        self, claim: LogitReply, update: Admitted, outputs: Tensor | Failure, request: LogitRequest
    ) -> str | None:
        """Why an upload is not what its client claimed; None where it is."""
        if isinstance(outputs, Failure):
            return one_line(outputs.reason)
        if update.num_examples != claim.num_examples:
            return f"uploaded {update.num_examples} examples, claimed {claim.num_examples}"
        if reason := logit_mismatch(claim.logits, outputs, request.encoding):
            return reason

        def loss(encoded: EncodedLogits) -> float:
            return self.V.loss_of_outputs(request.encoding.decode(encoded, request.shape, outputs.device), request.rows)

        return loss_mismatch(claimed=loss(claim.logits), uploaded=loss(request.encoding.encode(outputs)))

    def surrogate(self, z: Mapping[int, Tensor], w_t: Weights, rows: Tensor | None) -> EnsembleReward:
        """The loss of the averaged logits."""
        samples = self.V.samples if rows is None else self.V.samples.at(rows)
        own = cache(lambda: self.V.outputs([w_t], samples)[0])
        empty = (lambda: self.as_sent(own())) if self.empty_is_global else None
        return EnsembleReward(z, self.V.targets(rows), self.V.loss_function, own, empty)

    def as_sent(self, outputs: Tensor) -> Tensor:
        """Outputs after the encoding in which clients send theirs, so that R({}) can be compared with other rewards."""
        try:
            return self.encoding.decode(self.encoding.encode(outputs), tuple(outputs.shape), outputs.device)
        except Mismatch:
            return outputs  # not finite, because the global model has diverged; its reward is 0

    def true_rewards(
        self, this: _Round, clients: list[int], S_f: frozenset[int], A_t: list[int], w_t: Weights
    ) -> Rewards:
        """The rewards of averaged weights, of the sets whose weights were all uploaded."""
        weights = {k: update.weights.vector for k, update in this.updates.items()}
        R = self.V.judgement(w_t).reward(weights, w_t, self.empty_is_global)

        def of(ids: frozenset[int]) -> float | None:
            return R(ids) if ids and ids <= this.updates.keys() else None

        return Rewards(of(frozenset(clients)), of(S_f), of(frozenset(A_t)))
