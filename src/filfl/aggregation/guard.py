"""The guard before averaging: it refuses what cannot be averaged, and says why."""

import math
import numbers
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor

from filfl.aggregation.base import Admitted
from filfl.clients import Failure, Rehearsed, Sheet, Update
from filfl.errors import one_line
from filfl.weights import Layout, Mismatch, Weights

Passed = TypeVar("Passed")
MOST_EXAMPLES = 10**9
"""A client that claims more would, averaged by examples, replace the model by its own."""


def guard(
    answers: Mapping[int, Update | Failure], layout: Layout, device: torch.device
) -> tuple[dict[int, Admitted], dict[int, str]]:
    """The updates that may be averaged, on the server's device, and for every other client the reason against it."""
    return _each(answers, lambda answer: _admit(answer, layout, device))


def guard_logits(
    answers: Mapping[int, Rehearsed | Failure], sheet: Sheet, device: torch.device
) -> tuple[dict[int, Tensor], dict[int, str]]:
    """The logits that a filter may go by, on the server's device, and for every other client the reason against it."""

    def hear(answer: Rehearsed) -> Tensor:
        if not isinstance(answer, Rehearsed):
            raise Mismatch(f"the answer is a {type(answer).__name__}")
        _num_examples(answer.num_examples)
        float(answer.train_loss)
        return sheet.form.unpack(answer.logits, sheet.shape, device)

    return _each(answers, hear)


def _each(answers: Mapping[int, Any], admit: Callable[[Any], Passed]) -> tuple[dict[int, Passed], dict[int, str]]:
    admitted: dict[int, Passed] = {}
    refused: dict[int, str] = {}
    for k, answer in answers.items():
        try:
            if isinstance(answer, Failure):
                raise Mismatch(answer.reason)
            admitted[k] = admit(answer)
        except Mismatch as reason:
            refused[k] = one_line(str(reason))
        except Exception as error:  # whatever a client sends, it costs only itself
            refused[k] = one_line(f"the answer cannot be read ({type(error).__name__}: {error})")
    return admitted, refused


def _num_examples(n: Any) -> int:
    if isinstance(n, bool) or not isinstance(n, numbers.Integral) or not 1 <= int(n) <= MOST_EXAMPLES:
        raise Mismatch(f"the number of examples must be a whole number between 1 and {MOST_EXAMPLES:,} (got {n!r})")
    return int(n)


def _admit(answer: Update, layout: Layout, device: torch.device) -> Admitted:
    weights = answer.weights if isinstance(answer.weights, Weights) else layout.flatten(answer.weights)
    if tuple(weights.vector.shape) != (layout.num_floats,):
        raise Mismatch(f"the weights have shape {tuple(weights.vector.shape)} instead of ({layout.num_floats},)")
    if weights.vector.dtype != layout.dtype:
        raise Mismatch(f"the weights have dtype {weights.vector.dtype} instead of {layout.dtype}")
    if tuple(weights.integers.shape) != (layout.num_integers,) or weights.integers.dtype != torch.int64:
        raise Mismatch(f"the integer buffers are not {layout.num_integers} numbers of dtype torch.int64")
    # One value that is not finite makes the sum so too; a sum may also overflow, hence the second look.
    if not math.isfinite(float(weights.vector.sum())) and not (finite := weights.vector.isfinite()).all():
        where = int((~finite).nonzero()[0])
        entry = next(e for e in layout.entries if not e.integer and e.start <= where < e.stop)
        raise Mismatch(f"{entry.name} has a value that is not finite ({float(weights.vector[where])})")
    n = _num_examples(answer.num_examples)
    on_device = Weights(weights.vector.to(device), weights.integers.to(device))
    return Admitted(on_device, n, float(answer.train_loss), answer.message)
