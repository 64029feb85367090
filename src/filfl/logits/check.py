"""Whether uploaded weights match the logits that a client claimed before.

The weights and the claim are compared sample by sample, with a tolerance for rounding, and then by mean loss on V.
Rounding differences cancel out over many samples; a deliberate bias does not.
"""

import torch
from torch import Tensor

from filfl.logits.encoding import LEVELS, EncodedLogits, Encoding, as_rows, int8_scales

ARITHMETIC = 0.01
"""Tolerance per output between two machines with the same weights, relative to the largest output of the sample, which
counts as at least 1 and at most `MAX_MAGNITUDE`. Measured: see docs/logits.md."""
MAX_MAGNITUDE = 50.0
"""Larger outputs do not widen the tolerance, because the client that uploads the weights controls their size."""
LOSS_TOLERANCE = 0.005
"""Tolerance of the mean loss on V, relative to the loss of the weights, which counts as at least 1. Measured: see
docs/logits.md."""


def logit_mismatch(claimed: EncodedLogits, outputs: Tensor, encoding: Encoding) -> str | None:
    """Why weights with these outputs [m, ...] do not match the claimed logits; None if they match.

    They match if the claim is the encoding of outputs within the tolerance of the given ones.
    """
    exact = as_rows(outputs)
    if not exact.isfinite().all():
        return "the uploaded weights give an output on V that is not finite"
    tolerance = ARITHMETIC * exact.abs().amax(dim=1, keepdim=True).clamp(min=1.0, max=MAX_MAGNITUDE)
    if encoding.top and claimed.classes is not None:
        classes = claimed.classes.to(exact.device).long()
        exact = exact.log_softmax(dim=1)
        tolerance = 2 * tolerance  # a class and the normalisation may each be off
        least = exact.topk(encoding.top, dim=1).values[:, -1:]
        exact = exact.gather(1, classes)
        if bool((exact < least - tolerance).any()):
            return "uploaded weights do not match the claimed logits: other classes are the most likely ones"
    values, scales = claimed.values.to(exact.device).float(), None
    if claimed.scales is not None:
        scales = claimed.scales.to(exact.device)[:, None]
        values = values * scales
        if bool(((scales - int8_scales(exact)[:, None]).abs() > 1.001 * tolerance / LEVELS).any()):
            return "uploaded weights do not match the claimed logits: the int8 scales differ"
    low, high = encoding.round(exact - tolerance, scales), encoding.round(exact + tolerance, scales)
    beyond = torch.maximum(low - values, values - high)
    if bool((beyond <= 0).all()):
        return None
    j, c = divmod(int(beyond.argmax()), beyond.shape[1])
    return (
        f"uploaded weights do not match the claimed logits: output {c} for sample {j} of V is "
        f"{float(exact[j, c]):.4g}, the claim is {float(values[j, c]):.4g}"
    )


def loss_mismatch(claimed: float, uploaded: float) -> str | None:
    """Why a claimed mean loss on V does not match the loss of the uploaded weights; None if it matches."""
    if abs(claimed - uploaded) <= LOSS_TOLERANCE * max(1.0, uploaded):
        return None
    return (
        f"uploaded weights do not match the claimed logits: loss on V is {uploaded:.4g}, "
        f"the claim implies {claimed:.4g}"
    )
