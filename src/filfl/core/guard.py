"""The guard: it refuses replies that cannot be used, and gives the reason."""

import math
import numbers
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor

from filfl.aggregation.base import Admitted
from filfl.core.clients import Failure, Update
from filfl.core.queries import Query
from filfl.errors import one_line
from filfl.logits.messages import LogitReply, LogitRequest
from filfl.weights import Layout, Mismatch, Weights

Passed = TypeVar("Passed")
MAX_EXAMPLES = 10**9
"""A client that claims more would replace the model with its own when averaged by examples."""


def guard_updates(
    replies: Mapping[int, Update | Failure], layout: Layout, device: torch.device
) -> tuple[dict[int, Admitted], dict[int, str]]:
    """The updates that may be averaged, on the server's device; for every other client the reason for refusing it."""
    return _each(replies, lambda update: _admit(update, layout, device))


def guard_logits(
    replies: Mapping[int, LogitReply | Failure], request: LogitRequest, device: torch.device
) -> tuple[dict[int, Tensor], dict[int, str]]:
    """The logits that a filter may use, on the server's device; for every other client the reason for refusing it."""

    def decode(reply: LogitReply) -> Tensor:
        if not isinstance(reply, LogitReply):
            raise Mismatch(f"the reply is a {type(reply).__name__}")
        _check_num_examples(reply.num_examples)
        float(reply.train_loss)
        return request.encoding.decode(reply.logits, request.shape, device)

    return _each(replies, decode)


def guard_replies(replies: Mapping[int, Any], query: Query, layout: Layout) -> tuple[dict[int, Any], dict[int, str]]:
    """The replies to a query that can be used; for every other client the reason for refusing it."""
    return _each(replies, lambda reply: query.check(reply, layout))


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


def _check_num_examples(n: Any) -> int:
    if isinstance(n, bool) or not isinstance(n, numbers.Integral) or not 1 <= int(n) <= MAX_EXAMPLES:
        raise Mismatch(f"the number of examples must be a whole number between 1 and {MAX_EXAMPLES:,} (got {n!r})")
    return int(n)


def _admit(update: Update, layout: Layout, device: torch.device) -> Admitted:
    weights = update.weights if isinstance(update.weights, Weights) else layout.flatten(update.weights)
    if tuple(weights.vector.shape) != (layout.num_floats,):
        raise Mismatch(f"the weights have shape {tuple(weights.vector.shape)} instead of ({layout.num_floats},)")
    if weights.vector.dtype != layout.dtype:
        raise Mismatch(f"the weights have dtype {weights.vector.dtype} instead of {layout.dtype}")
    if tuple(weights.integers.shape) != (layout.num_integers,) or weights.integers.dtype != torch.int64:
        raise Mismatch(f"the integer buffers are not {layout.num_integers} numbers of dtype torch.int64")
    # One value that is not finite makes the sum non-finite. A sum may also overflow, hence the second check.
    if not math.isfinite(float(weights.vector.sum())) and not (finite := weights.vector.isfinite()).all():
        where = int((~finite).nonzero()[0])
        entry = next(e for e in layout.entries if not e.integer and e.start <= where < e.stop)
        raise Mismatch(f"{entry.name} has a value that is not finite ({float(weights.vector[where])})")
    n = _check_num_examples(update.num_examples)
    on_device = Weights(weights.vector.to(device), weights.integers.to(device))
    return Admitted(on_device, n, float(update.train_loss), update.message)
