"""Whether a model can be trained in batches of clients: tried on two of them, against training them one by one."""

import re
import warnings
from dataclasses import replace

from torch.nn.modules.batchnorm import _BatchNorm

from filfl.clients import Job, Update
from filfl.data import FederatedData
from filfl.evaluation import Loss
from filfl.simulation.serial import SerialClients
from filfl.simulation.vectorized import VectorizedClients
from filfl.weights import FlatModel, Weights

TOLERANCE = 1e-2
"""How far the two ways may come apart, as a share of the way: rounding is far below, a wrong batch far above."""
STEPS = 2


def why_not_batched(data: FederatedData, model: FlatModel, loss: Loss, job: Job) -> str | None:
    """Why this model and this loss cannot be batched over clients; None when they can."""
    if any(isinstance(module, _BatchNorm) for module in model.module.modules()):
        return "BatchNorm takes its statistics over a whole batch, and keeps them for one client at a time"
    sizes = data.num_train
    ids = sorted({int(sizes.argmin()), int(sizes.argmax())})  # as unequal as they come, so that batches are padded
    short = replace(job, epochs=None, steps=STEPS)
    start = model.weights()
    alone = SerialClients(data, model, loss).train(ids, start, short)
    together = VectorizedClients(data, model, loss, threads=1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # what has no batched form is computed one by one, with a warning
            batched = together.train_block(ids, start, short)
    except Exception as error:
        return _in_short(error)
    finally:
        together.close()
        model.load(start)
    same = all(isinstance(answer, Update) and _agree(batched[k], answer, start) for k, answer in alone.items())
    return None if same else "batched over clients it comes to other weights (is the loss a mean over the samples?)"


def _in_short(error: Exception) -> str:
    """What torch says at length."""
    text = str(error)
    if "randomness" in text:
        return "it draws random numbers in training (dropout)"
    if "data-dependent control flow" in text:
        return "its course depends on the data (an `if` on a tensor, or .item())"
    if missing := re.search("batching rule for ([\\w:]+)", text):
        return f"torch has no batched form of {missing[1]}"
    return f"{type(error).__name__}: {text.splitlines()[0].rstrip('.') if text else 'no reason given'}"


def _agree(one: Update, other: Update, start: Weights) -> bool:
    assert isinstance(one.weights, Weights)
    assert isinstance(other.weights, Weights)
    way = (other.weights.vector - start.vector).norm()
    apart = (one.weights.vector - other.weights.vector).norm()
    return bool(apart <= TOLERANCE * way) and abs(one.train_loss - other.train_loss) <= TOLERANCE * abs(
        other.train_loss
    )
