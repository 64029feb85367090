"""A filter round with the logits transport: only A_t uploads weights. Not in the paper; see docs/logits.md.

All considered clients train, keep their weights and reply with their logits on V. The filter maximises the ensemble
reward over these logits. The selected clients upload their weights, which must match the logits they claimed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

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
from filfl.filtering.base import Filter
from filfl.filtering.by_models import empty_note, memory_after, prepared, rewards_of, run_filter, trace_of
from filfl.filtering.filtering_set import FilteringSet
from filfl.filtering.rewards import EnsembleReward
from filfl.logits.check import logit_mismatch, loss_mismatch
from filfl.logits.encoding import EncodedLogits, Encoding
from filfl.logits.messages import LogitReply, LogitRequest, Recipients
from filfl.rng import stream
from filfl.weights import Weights


@dataclass
class _Round:
    """What a filter round has received so far."""

    request: LogitRequest
    claims: Mapping[int, LogitReply]
    latest: Latest
    updates: dict[int, Admitted] = field(default_factory=dict)
    """Uploaded weights that match the claimed logits."""
    mismatched: set[int] = field(default_factory=set)
    """Clients whose uploaded weights do not match. A filtering that used their claims is not valid."""
    checks: int = 0
    """Uploads that were evaluated on V."""


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
        filter: Filter,
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
        evaluations, notes = 0, []
        while True:
            clients = [k for k in considered if k in z]
            with exchange.clock("filter"):  # line 9: Algorithm 2
                R = self.surrogate({k: z[k] for k in clients}, state.w, request.rows)
                prepared(R, selector.K, state.filter_memory)
                filtering, (S_f, *_) = run_filter(self.filter, clients, R, self.seed, t)
            evaluations = max(evaluations, R.evaluations)
            A_t, failed = self.select_and_collect(sorted(S_f or z), this, selector, exchange)  # line 17 of Algorithm 2
            if len(A_t) == selector.K or not failed or (A_t and not failed & this.mismatched):
                break
            # Too few claims of S^f were true, so the filter decides again without them.
            notes.append(
                f"{len(failed)} selected clients did not upload what they claimed; filtered again without them"
            )
            z = {k: logits for k, logits in z.items() if k not in failed}
        assessment = Assessment(state.evidence)
        if self.assess and clients:
            with exchange.clock("assess"):
                assessment = self.assess(t, self.filter, clients, S_f, R, R, state.evidence)
        with exchange.clock("filter"):
            kept = S_f - failed
            return Outcome(
                S_f=tuple(sorted(kept)),
                eligible=tuple(sorted(kept)),
                A_t=A_t,
                updates=this.updates,
                past=Past(previous=S_t, seen=S_t, filtered_at=t),
                latest=this.latest,
                recipients=state.recipients.adding(request.digest, replied),
                notes=[*notes, *empty_note(clients, S_f)],
                did_filter=True,
                considered=considered,
                filtered_clients=clients,
                rewards=self.true_rewards(this, clients, kept, A_t, state.w),
                surrogates=rewards_of(R, clients, kept, A_t) if clients else Rewards(),
                evaluations=evaluations + this.checks,
                trace=trace_of(filtering),
                filter_memory=memory_after(state.filter_memory, filtering),
                assessment=assessment,
            )

    def request(self, t: int, ids: list[int], recipients: Recipients) -> LogitRequest:
        """What these clients are asked for in round t."""
        V, digest = self._public
        m, rows = len(V), None
        if self.part is not None and self.part < m:
            rows = torch.from_numpy(np.sort(stream(self.seed, t, "part-of-V").permutation(m)[: self.part]))
        new = frozenset(ids).difference(recipients.of(digest).tolist())
        shape = (m if rows is None else len(rows), *self.output_shape)
        return LogitRequest(V, digest, new, rows, shape, self.encoding)

    def select_and_collect(
        self, ids: list[int], this: _Round, selector: Selector, exchange: Exchange
    ) -> tuple[list[int], set[int]]:
        """A_t out of these clients; and the clients that failed to upload the weights they claimed.

        A client that fails is replaced by another selection while clients are left. Clients that have uploaded stay
        selected, and are not asked again.
        """
        left, missing, attempt = ids, selector.K, 0
        A_t: list[int] = []
        failed: set[int] = set()
        while left and missing:
            selected = selector(left, exchange, this.latest, missing, attempt)
            self.collect(sorted(set(selected) - this.updates.keys()), this, exchange)
            this.latest = selector.after_updates(this.latest, this.updates, exchange.w_t)
            A_t += [k for k in selected if k in this.updates]
            failed |= set(selected) - this.updates.keys()
            left = [k for k in left if k not in failed and (selector.with_replacement or k not in A_t)]
            missing, attempt = sum(k in failed for k in selected), attempt + 1
        return sorted(A_t), failed

    def collect(self, ids: list[int], this: _Round, exchange: Exchange) -> None:
        """Receive the weights that these clients kept, and refuse those that do not match the claimed logits."""
        with exchange.clock("upload"):
            admitted, absent = exchange.upload(ids)
            outputs = self.V.outputs_or_failures([each.weights for each in admitted.values()], this.request.samples)
            for (k, update), z in zip(admitted.items(), outputs, strict=True):
                if reason := self.mismatch(this.claims[k], update, z, this.request):
                    exchange.refuse(k, reason)
                else:
                    this.updates[k] = update
        this.checks += len(admitted)
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
        empty = self.V.outputs([w_t], samples)[0] if self.empty_is_global and z else None
        return EnsembleReward(
            z, self.V.targets(rows), self.V.loss_function, empty, own=lambda: self.V.outputs([w_t], samples)[0]
        )

    def true_rewards(
        self, this: _Round, clients: list[int], S_f: frozenset[int], A_t: list[int], w_t: Weights
    ) -> Rewards:
        """The rewards of averaged weights, of the sets whose weights were all uploaded."""
        weights = {k: update.weights.vector for k, update in this.updates.items()}
        R = self.V.judgement(w_t).reward(weights, w_t, self.empty_is_global)

        def of(ids: frozenset[int]) -> float | None:
            return R(ids) if ids and ids <= this.updates.keys() else None

        return Rewards(of(frozenset(clients)), of(S_f), of(frozenset(A_t)))
