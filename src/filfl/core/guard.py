"""The guard: it refuses replies that cannot be used or that no honest client sends, and gives the reason.

Every reply is first checked alone: its form, and whether its numbers are finite. It is then compared with the replies
of the other clients in the same round: with their median, of an even number the larger of the two middle ones, so that
fewer than half of the clients cannot move it far. This needs at least two others.
"""

import math
import numbers
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from filfl.aggregation.base import PIECE, Admitted
from filfl.config.schema import Range, Section, Whole
from filfl.core.clients import Evaluated, Failure, Update
from filfl.core.queries import Query
from filfl.errors import one_line
from filfl.logits.messages import LogitReply, LogitRequest
from filfl.selection.base import AnyIds
from filfl.weights import Layout, Mismatch, Weights

Passed = TypeVar("Passed")
Bound = Annotated[float, Range(at_least=1)]
MAX_EXAMPLES = 10**9
"""A client that claims more would replace the model with its own when averaged by examples."""
LARGEST = float(torch.finfo(torch.float32).max)
"""A loss above this counts as infinite: no honest client computes it."""


@dataclass(frozen=True, kw_only=True)
class Guard(Section):
    """How far a client's reply may be from those of the other clients in the same round. A client beyond a bound is
    refused in this round, and the record says why. Honest clients were far from the bounds in all measurements: on
    FEMNIST, Shakespeare, CIFAR-10 and MNIST-5k, with FedAvg and FedProx, also with wrong labels
    (benchmarks/guard_bounds.py). A federation whose clients differ more can raise them."""

    norm: Bound = 1000.0
    """The largest norm of an update w_k - w_t, as a multiple of the median of the other clients. An update that is
    smaller than the model itself always passes. With fewer than three updates, it is a multiple of the norm of the
    model. Measured among honest clients: at most 3.4, and 7.8 in the worst group of three."""
    examples: Bound = 1000.0
    """The largest number of examples that a client may claim, as a multiple of the median of the other clients. If only
    two clients reply and they differ by more, both are refused, since nobody can tell which is wrong. Measured among
    honest clients: at most 10.1, and 8.2 in the worst group of three."""
    answers: Bound = 100.0
    """The largest loss, and the largest norm of a gradient, that a client may answer to a query, as a multiple of the
    median of the other clients; a median below 1 counts as 1. Measured among honest clients: at most 2.3."""
    stop_after: Whole = 3
    """Stop with an error after this many rounds in a row in which every update was refused. The run can be resumed.
    Rounds in which no client replied do not count: clients may come back. 0 is never."""


class RoundGuard:
    """The guard of one round. It remembers what was claimed earlier in the round."""

    def __init__(self, bounds: Guard, layout: Layout, w_t: Weights) -> None:
        self.bounds, self.layout, self.w_t = bounds, layout, w_t
        self.notes: list[str] = []
        """Numbers that were left out without refusing the rest of the reply."""
        self._examples: dict[int, float] = {}
        self._norms: dict[int, float] = {}
        self._train_losses: dict[int, float] = {}

    def updates(self, replies: Mapping[int, Update | Failure]) -> tuple[dict[int, Admitted], dict[int, str]]:
        """The updates that may be averaged, on the server's device; for every other client the reason for refusing
        it."""
        passed, refused = _each(replies, self._admit)
        refused |= self._too_large({k: norm for k, (_, norm) in passed.items()})
        refused |= self._too_many_examples({k: update.num_examples for k, (update, _) in passed.items()})
        admitted = {k: update for k, (update, _) in passed.items() if k not in refused}
        return self._with_credible_train_losses(admitted), refused

    def logits(
        self, replies: Mapping[int, LogitReply | Failure], request: LogitRequest
    ) -> tuple[dict[int, Tensor], dict[int, str]]:
        """The logits that a filter may use, on the server's device; for every other client the reason for refusing
        it."""

        def decode(reply: LogitReply) -> tuple[Tensor, int]:
            if not isinstance(reply, LogitReply):
                raise Mismatch(f"the reply is a {type(reply).__name__}")
            float(reply.train_loss)
            n = _checked_examples(reply.num_examples)
            return request.encoding.decode(reply.logits, request.shape, self.w_t.vector.device), n

        passed, refused = _each(replies, decode)
        refused |= self._too_many_examples({k: n for k, (_, n) in passed.items()})
        return {k: z for k, (z, _) in passed.items() if k not in refused}, refused

    def answers(self, replies: Mapping[int, Any], query: Query) -> tuple[dict[int, Any], dict[int, str]]:
        """The replies to a query that can be used; for every other client the reason for refusing it."""

        def check(reply: Any) -> tuple[Any, float]:
            checked = query.check(reply, self.layout)
            return checked, query.magnitude(checked)

        passed, refused = _each(replies, check)
        refused |= beyond_others({k: size for k, (_, size) in passed.items()}, self.bounds.answers, query.measured)
        return {k: reply for k, (reply, _) in passed.items() if k not in refused}, refused

    def evaluations(self, replies: Mapping[int, Evaluated | Failure]) -> tuple[dict[int, Evaluated], dict[int, str]]:
        """The tests of the global model that may be averaged; for every other client the reason for refusing it. A
        metric that is not credible is left out, and the others of the same client are kept."""
        passed, refused = _each(replies, lambda reply: reply)
        refused |= self._too_many_examples({k: reply.num_examples for k, reply in passed.items()})
        wrong: dict[int, dict[str, str]] = {}
        for name in sorted({name for reply in passed.values() for name in reply.metrics}):
            values = {k: abs(reply.metrics[name]) for k, reply in passed.items() if name in reply.metrics}
            for k, reason in beyond_others(values, self.bounds.answers, f"the metric {one_line(name, 50)}").items():
                wrong.setdefault(k, {})[name] = reason
        for k, reasons in sorted(wrong.items()):
            rest = {name: value for name, value in passed[k].metrics.items() if name not in reasons}
            passed[k] = replace(passed[k], metrics=rest)
            more = f", and so are {len(reasons) - 1} other metrics" if len(reasons) > 1 else ""
            self.notes.append(f"client {k}: {next(iter(reasons.values()))}; it is left out{more}")
        return {k: reply for k, reply in passed.items() if k not in refused}, refused

    def sizes(self, ids: AnyIds, claimed: NDArray[np.int64]) -> tuple[NDArray[np.int64], dict[int, str]]:
        """The numbers of examples that clients registered with, 0 for a client that is refused; and the reasons."""
        known = claimed > 0
        wrong, medians = _beyond(claimed[known].astype(np.float64), self.bounds.examples)
        at = np.flatnonzero(known)[wrong]
        reasons = [self._examples_reason(int(claimed[i]), m) for i, m in zip(at, medians[wrong], strict=True)]
        sizes = claimed.copy()
        sizes[at] = 0
        return sizes, {int(ids[i]): reason for i, reason in zip(at, reasons, strict=True)}

    def _admit(self, update: Update) -> tuple[Admitted, float]:
        """An update that has the right form, and its norm."""
        layout, device = self.layout, self.w_t.vector.device
        weights = update.weights if isinstance(update.weights, Weights) else layout.flatten(update.weights)
        if tuple(weights.vector.shape) != (layout.num_floats,):
            raise Mismatch(f"the weights have shape {tuple(weights.vector.shape)} instead of ({layout.num_floats},)")
        if weights.vector.dtype != layout.dtype:
            raise Mismatch(f"the weights have dtype {weights.vector.dtype} instead of {layout.dtype}")
        if tuple(weights.integers.shape) != (layout.num_integers,) or weights.integers.dtype != torch.int64:
            raise Mismatch(f"the integer buffers are not {layout.num_integers} numbers of dtype torch.int64")
        vector = weights.vector.to(device)
        norm = distance(vector, self.w_t.vector)
        # A value that is not finite makes the norm non-finite. A difference may also overflow, hence the second check.
        if not math.isfinite(norm) and not (finite := vector.isfinite()).all():
            where = int((~finite).nonzero()[0])
            entry = next(e for e in layout.entries if not e.integer and e.start <= where < e.stop)
            raise Mismatch(f"{entry.name} has a value that is not finite ({float(vector[where])})")
        self._check_statistics(weights)
        n = _checked_examples(update.num_examples)
        on_device = Weights(vector, weights.integers.to(device))
        return Admitted(on_device, n, float(update.train_loss), update.message), norm

    def _check_statistics(self, weights: Weights) -> None:
        """Refuse statistics of BatchNorm that no training gives. With a negative variance the averaged model computes
        NaN, and with a counter that is negative or overflows, clients that use it cannot train."""
        for entry in self.layout.entries:
            if not entry.name.endswith(("running_var", "num_batches_tracked")):
                continue
            value, before = entry.of(weights), entry.of(self.w_t).to(weights.vector.device)
            # Where the global model is negative itself, the server is to blame.
            wrong = (value < 0) & (before >= 0)
            if entry.integer:
                wrong |= value > before + MAX_EXAMPLES
            if wrong.any():
                raise Mismatch(f"{entry.name} has a value that no training gives ({value[wrong][0]:g})")

    def _too_large(self, norms: Mapping[int, float]) -> dict[int, str]:
        self._norms |= norms
        model = max(1.0, float(torch.linalg.vector_norm(self.w_t.vector, dtype=torch.float64)))
        medians = medians_of_others(self._norms) if len(self._norms) > 2 else {}
        refused = {}
        for k, norm in norms.items():
            compared = medians.get(k, model)
            if norm > max(self.bounds.norm * compared, model):
                whose = "the median of the other clients" if medians else "the norm of the model"
                refused[k] = f"the norm of the update is {norm:.4g}, {self._times('norm')} {whose} ({compared:.4g})"
        return refused

    def _too_many_examples(self, claimed: Mapping[int, int]) -> dict[int, str]:
        self._examples |= claimed
        wrong, medians = _beyond(np.array(list(self._examples.values()), dtype=np.float64), self.bounds.examples)
        found = dict(zip(self._examples, zip(wrong.tolist(), medians.tolist(), strict=True), strict=True))
        return {k: self._examples_reason(n, found[k][1]) for k, n in claimed.items() if found[k][0]}

    def _examples_reason(self, n: int, others: float) -> str:
        if n < others:
            return f"it claims {n:,} examples, and the only other client {others:,.0f}; one of the two must be wrong"
        return f"it claims {n:,} examples, {self._times('examples')} the median of the other clients ({others:,.0f})"

    def _with_credible_train_losses(self, admitted: dict[int, Admitted]) -> dict[int, Admitted]:
        """A train loss is only recorded, so one that is not credible is left out. NaN is one that was not reported."""
        reported = {k: update.train_loss for k, update in admitted.items() if not math.isnan(update.train_loss)}
        self._train_losses |= reported
        wrong = beyond_others(
            {k: abs(loss) for k, loss in self._train_losses.items()}, self.bounds.answers, "the train loss"
        )
        for k in reported.keys() & wrong.keys():
            self.notes.append(f"client {k}: {wrong[k]}; it is left out of the train loss")
            admitted[k] = replace(admitted[k], train_loss=math.nan)
        return admitted

    def _times(self, bound: str) -> str:
        return f"more than {getattr(self.bounds, bound):g} times"


def beyond_others(values: Mapping[int, float], bound: float, what: str) -> dict[int, str]:
    """The clients whose value, which is not negative, is not finite or beyond the bound, and why.

    A value that is not finite passes where most others are not finite either: then the model is to blame.
    """
    finite = {k: value if value <= LARGEST else math.inf for k, value in values.items()}
    medians = medians_of_others(finite)
    refused = {}
    for k, value in finite.items():
        others = medians.get(k, 0.0)
        if not math.isfinite(value) and math.isfinite(others):
            refused[k] = f"{what} is not finite ({values[k]:g})"
        elif len(values) > 2 and value > bound * max(1.0, others):
            refused[k] = (
                f"{what} is {value:.4g}, more than {bound:g} times the median of the other clients ({others:.4g})"
            )
    return refused


def medians_of_others(values: Mapping[int, float]) -> dict[int, float]:
    """For each client the median of the other clients' values; empty for a single client."""
    if len(values) < 2:
        return {}
    return dict(zip(values, _medians(np.array(list(values.values()), dtype=np.float64)).tolist(), strict=True))


def _medians(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """For each of two or more values the median of the others; of an even number, the larger of the two middle ones."""
    middle = (len(values) - 1) // 2
    ordered = np.partition(values, [middle, middle + 1])
    medians: NDArray[np.float64] = np.where(values <= ordered[middle], ordered[middle + 1], ordered[middle])
    return medians


def _beyond(examples: NDArray[np.float64], bound: float) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """Whether each number is beyond the bound, and the median of the others. Of two, both are, or neither."""
    if len(examples) < 2:
        return np.zeros(len(examples), dtype=bool), examples
    medians = _medians(examples)
    wrong = examples > bound * medians
    return np.full_like(wrong, wrong.any()) if len(examples) == 2 else wrong, medians


def distance(a: Tensor, b: Tensor) -> float:
    """||a - b||, in pieces that stay in the cache. A sum of squares that overflows is computed again in float64."""
    pieces = list(zip(a.split(PIECE), b.split(PIECE), strict=True))
    squares = [torch.linalg.vector_norm(x - y).double().square() for x, y in pieces]
    total = float(torch.stack(squares).sum().sqrt()) if squares else 0.0
    return total if math.isfinite(total) else float(torch.linalg.vector_norm(a - b, dtype=torch.float64))


def _each(replies: Mapping[int, Any], admit: Callable[[Any], Passed]) -> tuple[dict[int, Passed], dict[int, str]]:
    admitted: dict[int, Passed] = {}
    refused: dict[int, str] = {}
    for k, reply in replies.items():
        try:
            if isinstance(reply, Failure):
                raise Mismatch(reply.reason)
            admitted[k] = admit(reply)
        except Mismatch as reason:
            refused[k] = one_line(str(reason))
        except Exception as error:  # an invalid reply affects only the client that sent it
            refused[k] = one_line(f"the reply cannot be read ({type(error).__name__}: {error})")
    return admitted, refused


def _checked_examples(n: Any) -> int:
    if isinstance(n, bool) or not isinstance(n, numbers.Integral) or not 1 <= int(n) <= MAX_EXAMPLES:
        raise Mismatch(f"the number of examples must be a whole number between 1 and {MAX_EXAMPLES:,} (got {n!r})")
    return int(n)
